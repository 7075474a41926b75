"""Faster answers from quantized GGUF models on CPUs, with exactly the target model's output."""

__version__ = "0.1.0"
