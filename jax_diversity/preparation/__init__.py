"""The stage `prepare`: it makes documents from files, or from the installed Python packages.

Documents are processed one after another; they are never all in memory.
"""
