"""Readers: each reader makes documents from files of one format."""
