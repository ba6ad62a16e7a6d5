"""Sequences as stored bytes: ArrayRecord files whose every record holds all that one sequence needs.

`write_records` gathers sequences from the tokens of their segments, `RecordReader` reads them back by place and
decodes whole batches into the arrays that training takes.
"""
