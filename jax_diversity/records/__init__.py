"""Sequences as stored bytes: ArrayRecord files; a record has everything about one sequence."""
