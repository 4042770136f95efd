"""What can be trained: a task's examples, its objective and its metrics."""
