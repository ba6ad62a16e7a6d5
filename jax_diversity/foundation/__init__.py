"""What every part stands on and what knows nothing of the subject: errors, artifacts, settings, methods, progress."""
