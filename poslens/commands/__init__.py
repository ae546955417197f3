"""The command line: options, output and answers that all commands share."""
