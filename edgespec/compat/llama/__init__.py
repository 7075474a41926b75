"""`Llama`: the interface of llama-cpp-python's class of that name, on an engine of edgespec's."""

from edgespec.compat.llama.model import Llama

__all__ = ["Llama"]
