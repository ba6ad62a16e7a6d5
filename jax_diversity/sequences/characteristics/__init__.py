"""Characteristics of sequences: from documents' groups and segments we make a sparse count matrix for every family.

A *family* is a kind of characteristics, such as topic clusters, document lengths or sources. A *group* is one value of
a family, such as one cluster.
"""
