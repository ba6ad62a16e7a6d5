"""Documents -> vectors that put topics near each other; one method a file.

`tfidf_svd` learns from the corpus, `hashing` learns nothing, `qwen3` runs a language model, `precomputed` reads
vectors from files; `base` says what an embedder is and makes the one that the settings name.
"""
