"""Compare edgespec's kernels with llama.cpp's: by format, in whole models, and in what they say."""
