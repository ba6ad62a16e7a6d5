"""From a corpus to an ordered, measured, stored dataset.

prepare -> tokenize -> pack ---> characterize -> order -> measure -> report
prepare -> embed -> cluster -/                   pack, order -> write
"""
