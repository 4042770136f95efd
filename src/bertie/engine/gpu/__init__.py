"""The engine on a GPU: half precision and fp8, in Triton kernels and cuBLAS, with CUDA graphs for small batches.

runner.py               the whole: a packed batch in, hidden states out; start here
layers.py               one layer: which product and which kernel, in order, in half precision or fp8
attention.py            attention over packed texts     attention_schedule.py   which part of a batch each program takes
embed_norm_gelu.py      what lies between the products: embeddings, residual and LayerNorm, GELU
small_batch_product.py  x·W + b for up to 64 tokens     fp8_up_product.py       the widening product with GELU, in fp8
fp8.py                  rounding, and which products may be rounded
cuda_graphs.py          small batches as recorded graphs        pooling.py      one vector of each text
kernel_functions.py     what several kernels compute    triton_launch.py        Triton's launches, cheaper
training/               for training, which the reference model does with its layers exchanged
"""
