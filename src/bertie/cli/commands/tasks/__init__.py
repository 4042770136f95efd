"""The tasks on texts, a command each."""
