"""Sequences as stored bytes: ArrayRecord files whose every record holds all that one sequence needs."""
