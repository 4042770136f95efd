"""What can be trained: one file per task, each an `Objective` of contract.py."""
