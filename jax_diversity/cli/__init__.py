"""The command line: commands, options, and output (tables, small curves) of at most 80 columns."""
