"""Stage: files, or the installed Python packages -> documents, one after another, never all in memory."""
