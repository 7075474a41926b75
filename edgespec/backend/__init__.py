"""The only package that talks to the native library: models, contexts, caches, hidden states."""

from edgespec.backend.checkpoints import MOST_NODES
from edgespec.backend.context import Context, ContextOptions
from edgespec.backend.grammar import Grammar
from edgespec.backend.hidden_states import (
    FinalStates,
    HeadContext,
    LayerTaps,
    MTPContext,
    RecordedInputs,
    RecordedOutputs,
    RecordedStates,
    StateContext,
    can_tap,
)
from edgespec.backend.kernels import (
    KernelStatus,
    formats_of,
    kernel_status,
    open_heads,
    time_formats,
)
from edgespec.backend.lifetime import Capabilities, capabilities
from edgespec.backend.model import Model, ModelOptions, quantize
from edgespec.backend.parallel import POOLINGS, EmbeddingContext, ParallelContext
from edgespec.backend.probe import require_sound
from edgespec.backend.vocabulary import PLAIN, Vocabulary

__all__ = [
    "MOST_NODES",
    "PLAIN",
    "POOLINGS",
    "Capabilities",
    "Context",
    "ContextOptions",
    "EmbeddingContext",
    "FinalStates",
    "Grammar",
    "HeadContext",
    "KernelStatus",
    "LayerTaps",
    "MTPContext",
    "Model",
    "ModelOptions",
    "ParallelContext",
    "RecordedInputs",
    "RecordedOutputs",
    "RecordedStates",
    "StateContext",
    "Vocabulary",
    "can_tap",
    "capabilities",
    "formats_of",
    "kernel_status",
    "open_heads",
    "quantize",
    "require_sound",
    "time_formats",
]
