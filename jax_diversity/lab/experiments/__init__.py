"""Experiments: small models trained in pairs, on one corpus in several orders, and what the pairs tell."""
