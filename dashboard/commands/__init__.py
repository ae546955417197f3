"""The command line, a module for each group of commands.

Results go to stdout, progress and messages to stderr. Exit codes: 0 done, 1 a check
failed, 2 bad input, 130 interrupted.
"""
