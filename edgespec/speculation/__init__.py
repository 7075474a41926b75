"""Acceptance rules: which proposals stay, and what replaces the first that does not.

Pure Numba kernels: no llama.cpp, no allocation per token.
"""
