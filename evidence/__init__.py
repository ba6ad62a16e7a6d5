"""Experiments: small models trained in pairs on one corpus in several orders, and the statistics of the pairs."""
