"""Models, the device queue, runs, provenance and settings: what every study computes with."""
