"""Export of figures and tables to files with provenance, and the browser that renders them."""
