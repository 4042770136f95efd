"""What code written for transformers expects of a tokenizer."""
