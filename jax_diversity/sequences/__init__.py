"""From documents to sequences with counts: tokens, vectors, clusters, packing, characteristics."""
