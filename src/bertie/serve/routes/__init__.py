"""The routes, a file to each group of them: what they answer, and what runs the models for it."""
