"""What stands between reading and storing: filters, duplicates, personal data, scores, and an account of it all."""
