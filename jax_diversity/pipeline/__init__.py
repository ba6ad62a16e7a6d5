"""The chain of stages: what each reads, what it writes, when it may be skipped.

    prepare -> tokenize -> pack ---> characterize -> order -> measure -> report
    prepare -> embed -> cluster -/                   pack, order -> write

`chain` knows how a stage is skipped, resumed and published; `stages` lists them; `documents`, `sequences`,
`orderings` and `reporting` hold what each one does. This package is the only place where stages meet.
"""
