"""Checkpoints of every kind: found, checked, read, and written whole or not at all.

The road of one checkpoint: `read` (what a person points at; through `hub`, `folder`, `shards`) → `safe`, `torch_bin` or
`tensorflow` (its tensors) → `names` (whose weight each is) → `load` (into a model, with a `report`). And out again:
`save` → `safe` → `atomic`.
"""
