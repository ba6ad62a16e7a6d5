"""Write and read tokens in Megatron's indexed dataset format, as one dataset or as a blend of several."""
