"""Documents' codes joined with segments: the sparse count matrix of every family."""
