"""From a row of logits to the distribution p that was asked for, and seeded draws from it.

Numba kernels only: no llama.cpp, no allocation per token.
"""
