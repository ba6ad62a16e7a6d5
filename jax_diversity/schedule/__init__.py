"""A run's schedule: which sequence of which dataset comes at every position, made ahead, stored in versions."""
