"""`Llama`: the interface of llama-cpp-python's class of that name, on an engine of edgespec."""

from edgespec.compat.llama.grammar import LlamaGrammar
from edgespec.compat.llama.model import Llama

__all__ = ["Llama", "LlamaGrammar"]
