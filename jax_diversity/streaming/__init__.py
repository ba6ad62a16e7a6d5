"""From an order to batches: records, datasets, runs, loaders, exports."""
