"""Tasks: texts in, typed answers out.

The road of one text: a task turns it into `Row`s (rows.py: truncated or windowed), `run_in_order` (batching.py) packs
rows of many texts into batches by token budget, `Loaded.run` (loaded.py) puts a batch through the model, and the task
turns its part of the output into an answer. Each task is one file.
"""
