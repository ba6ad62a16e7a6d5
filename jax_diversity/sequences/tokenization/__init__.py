"""From documents' texts to token ids in Megatron's indexed format; one class, `Tokenizer`, for all libraries."""
