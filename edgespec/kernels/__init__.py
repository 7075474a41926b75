"""Our own ggml device: packed weights, and generated code that multiplies them.

llama.cpp unpacks every weight anew for every token; here a weight is unpacked once for up to six
tokens, so that verifying a block costs little more than one token. Reading order: `formats` (how
weights lie), `isa`, `codes` and `gemm` (the kernels), `compiler`; `tables`, `multiplying`
and `callbacks` (what ggml calls), `device`. Opened by `backend` alone.
"""
