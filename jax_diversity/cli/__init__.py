"""The command line: verbs, options, and tables and small curves at most 80 columns wide."""
