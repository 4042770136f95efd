"""What several commands share: options, texts in, answers out."""
