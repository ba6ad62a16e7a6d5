"""Orders and sequences in the forms that other training stacks read; one stack a module.

No stack's package is imported here: files are written by their formats, datasets follow the stacks' protocols.
"""
