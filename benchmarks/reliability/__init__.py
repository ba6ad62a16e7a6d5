"""The campaign against the package: attacks with counts.

    python -m benchmarks.reliability [NAME ...] [--scale quick|full] [--write]

A module holds one kind of attack: `kills`, `corruption`, `faults`, `hostile`, `fuzz`, `elastic`, `documents`,
`secrets`, `folders`, `options`, `rows`. Each has a function `attack(folder, count, seed)` that returns counts.
`tally.FAULTS` lists the events that must not happen.
"""
