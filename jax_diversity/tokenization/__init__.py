"""Stage: documents' texts -> token ids in Megatron's indexed format. One class, `Tokenizer`, for all libraries."""
