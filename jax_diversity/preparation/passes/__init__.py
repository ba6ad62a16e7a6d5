"""Passes: documents go through the steps of a preparation, in parts and phases. Every removal is recorded."""
