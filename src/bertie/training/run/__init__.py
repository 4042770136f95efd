"""One run: the loop, its state and checkpoints, its processes, and what people see of it."""
