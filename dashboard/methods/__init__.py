"""The Methods page: tests of attribution methods."""
