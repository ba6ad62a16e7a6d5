"""Sequences stored as ArrayRecord files. A record contains everything that training needs of a sequence."""
