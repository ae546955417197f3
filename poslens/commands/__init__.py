"""Options, output and JSON shapes shared by the commands."""
