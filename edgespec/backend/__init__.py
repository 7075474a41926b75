"""The only package that talks to the native library: models, contexts, caches, hidden states."""

from edgespec.backend.context import Context, ContextOptions
from edgespec.backend.grammar import Grammar, grammar_from_schema, grammar_of_json
from edgespec.backend.head import HeadContext
from edgespec.backend.model import Model, ModelOptions, quantize
from edgespec.backend.native import Capabilities, capabilities
from edgespec.backend.parallel import ParallelContext
from edgespec.backend.taps import LayerTaps, RecordedInputs, can_tap
from edgespec.backend.vocabulary import PLAIN, Vocabulary

__all__ = [
    "PLAIN",
    "Capabilities",
    "Context",
    "ContextOptions",
    "Grammar",
    "HeadContext",
    "LayerTaps",
    "Model",
    "ModelOptions",
    "ParallelContext",
    "RecordedInputs",
    "Vocabulary",
    "can_tap",
    "capabilities",
    "grammar_from_schema",
    "grammar_of_json",
    "quantize",
]
