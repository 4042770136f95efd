"""Bertie where another library is asked for a BERT. transformers is imported only here, when `register` is called."""
