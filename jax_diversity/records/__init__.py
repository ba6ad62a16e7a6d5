"""Sequences stored as ArrayRecord files. A record contains everything about one sequence."""
