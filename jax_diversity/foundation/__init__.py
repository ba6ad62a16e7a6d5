"""General functions that all other packages use: errors, artifacts, settings, methods, progress."""
