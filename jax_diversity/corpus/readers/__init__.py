"""Readers: files of one format each become documents."""
