"""Build the bundled data sets, the adapters and the generated docs. PosLens doesn't import these
modules."""
