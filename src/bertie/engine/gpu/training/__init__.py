"""Training on a GPU: the reference model with its layers exchanged for fused ones.

fuse.py             a fused model to be trained; start here   cuda_graphs.py      all its layers as two CUDA graphs
layer.py            one layer, forward and back               gradients.py        the kernels of the way back
batch.py            what a batch looks like to a layer        long_attention.py   attention over long texts, both ways
embeddings.py       embeddings, forward and back              vocabulary_loss.py  scores of a vocabulary, their loss
adamw.py            the optimizer's step in one launch        autograd.py         types for PyTorch's functions
"""
