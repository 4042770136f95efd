"""Checkpoints of every kind: found, checked, read, and written whole or not at all.

The path of one checkpoint: `find_checkpoint` (what a person points at → files; through `hub`, `shipped`,
`weight_files`) → `open_checkpoint` over the formats `safetensors`, `torch_bin` and `tensorflow/` → `names` (whose
weight each tensor is) → `load_weights` (into a model, with a `report`). And out again: `save`. `inspect`
says what is in one, without torch.

What exists only because files may be damaged or hostile is in `hostile/`.
"""
