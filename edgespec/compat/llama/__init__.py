"""`Llama`: the interface of llama-cpp-python's class of that name, on an engine of edgespec."""

from edgespec.compat.llama.model import Llama, LlamaGrammar

__all__ = ["Llama", "LlamaGrammar"]
