"""Orders and sequences in the forms that other training stacks read, one stack a module; none of them is imported."""
