"""generate(): its options, its rules for tokens, beam search."""
