"""From vectors to topic clusters: k-means over a mesh of devices, names and a map of the clusters, and their purity."""
