"""Tasks: texts in, typed answers out. Each is one file, and nothing else is here.

The road of one text: a task turns it into rows (running/rows.py), which go through the model in batches of many texts
(running/stream.py), and turns what the model says of them into an answer (`RowTask` in running/task.py).
"""
