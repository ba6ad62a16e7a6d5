"""Passes: documents go through the steps in parts and phases, and every removal is recorded."""
