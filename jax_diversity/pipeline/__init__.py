"""From a corpus to an ordered, measured, stored dataset.

    prepare -> tokenize -> pack ---> characterize -> order -> measure -> report
    prepare -> embed -> cluster -/                   pack, order -> write

`stages` lists the stages, `settings` holds the tree of their settings, `build` runs, skips and resumes them.
"""
