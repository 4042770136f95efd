"""The CPU runner: our own C++ kernels (csrc/), called through plain pointers."""
