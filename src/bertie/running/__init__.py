"""A model ready to run, and how texts flow through it."""
