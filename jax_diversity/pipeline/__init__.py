"""Build an ordered, measured, stored dataset from a corpus.

stage         reads
tokenize      prepare
embed         prepare, tokenize
cluster       prepare, tokenize, embed
pack          prepare, tokenize; with some settings embed, cluster
characterize  prepare, tokenize, cluster, pack
order/NAME    characterize
measure/NAME  characterize, order/NAME
write         tokenize, pack; with records.layout=ordered also order/NAME
report        all finished stages
"""
