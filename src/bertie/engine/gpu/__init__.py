"""The engine on a GPU: half precision and fp8, in Triton kernels and cuBLAS, with CUDA graphs for small batches.

runner.py       the whole: a packed batch in, hidden states out; start here
layers.py       one layer: which product and which kernel, in order, in half precision or fp8
schedule.py     which part of a batch each attention program takes, worked out on the host
attention.py    attention over packed texts          epilogues.py   what lies between the products
graphs.py       small batches as recorded graphs     fp8.py         rounding, and which products may be rounded

For training, which the reference model does with its layers exchanged:
training.py         a fused model to be trained         recorded.py   all its layers as two CUDA graphs
training_layer.py   one layer, forward and back         gradients.py  the kernels of the way back, and dropout
training_batch.py   what a batch looks like to a layer  embedding.py  embeddings, forward and back
words.py            scores of a vocabulary, their loss  launch.py     Triton's launches, cheaper
"""
