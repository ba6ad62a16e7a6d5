"""Orders and sequences in the forms that other training stacks read; one stack a module.

Names are imported when first used: no stack's package is needed for another's files.
"""
