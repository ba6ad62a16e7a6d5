"""Text -> token ids: one contract, `Tokenizer`, and one library a file."""
