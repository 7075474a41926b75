"""From a row of logits to the distribution p that was asked for, and seeded draws from it.

Pure Numba kernels: no llama.cpp, no allocation per token.
"""
