"""Batches in the order of a run, as a Grain dataset whose state is one integer.

The window contract: row j of the global batch at position p is the sequence `order[p + j]`, for any number of hosts,
threads or epochs. Host h of H holds the rows h*B/H .. (h + 1)*B/H - 1. Positions continue from epoch to epoch: a batch
may contain the end of one epoch and the beginning of the next, and no sequence is left out between them.
"""

import logging

import absl.logging  # before its logger is asked for, because it has a class of its own

# Grain warns once per process that workers cannot be profiled with older versions of JAX. Nobody profiles them here.
_WORKER_PROFILING = "Grain multiprocess worker profiling requires"
logging.getLogger(absl.logging.get_absl_logger().name).addFilter(
    lambda record: not str(record.msg).startswith(_WORKER_PROFILING)
)
