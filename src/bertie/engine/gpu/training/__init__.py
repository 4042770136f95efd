"""Training on a GPU: layers forward and backward, recorded graphs, the optimizer's kernel."""
