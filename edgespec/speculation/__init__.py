"""Acceptance rules: which proposals stay, and what replaces the first that does not.

No llama.cpp; the kernels are Numba and allocate nothing per token.
"""
