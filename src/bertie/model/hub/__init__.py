"""What code written for transformers expects of a model."""
