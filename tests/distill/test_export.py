"""An exported file computes in llama.cpp what the network computes here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip(
    "torch", reason='PyTorch is not installed: pip install "edgespec[distill]"'
)

from edgespec.backend import Context, ContextOptions, Model
from edgespec.distill.draft import Teacher, attention_mask
from edgespec.distill.finish import Provenance, read_draft, write_draft
from edgespec.distill.tiny import Tiny, TinyShape
from edgespec.gguf.header import read_header

PROVENANCE = Provenance("toy", "0" * 64, "1" * 64, "itself", 10, 20, 0.9, [0.5], [0.4], {"a": 1})


def random_tiny(teacher: Teacher) -> Tiny:
    """Every parameter noise, so that nothing is left out by being zero."""
    torch.manual_seed(3)
    tokens = len(teacher.vocabulary.target_ids) + 1
    draft = Tiny(TinyShape(tokens, 64, 2, 96, 2), teacher)
    with torch.no_grad():
        for parameter in draft.parameters():
            scale = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.2
            offset = 0.0 if parameter.ndim > 1 else 1.0
            parameter.copy_(offset + scale * torch.randn_like(parameter))
    return draft


def ours(draft: Tiny, tokens: np.ndarray) -> np.ndarray:
    ids = torch.from_numpy(tokens.astype(np.int64))[None]
    positions = torch.arange(len(tokens))[None]
    states = draft.states(ids, positions, attention_mask(torch.zeros_like(ids)))
    return draft.logits(states)[0].detach().numpy()


def theirs(path: Path, tokens: np.ndarray) -> np.ndarray:
    with Model(path) as model, Context(model, ContextOptions(length=128, kv_type="f32")) as context:
        return context.evaluate(tokens, len(tokens)).copy()


@pytest.mark.parametrize(("file_format", "tolerance"), [("F32", 2e-3), ("Q8_0", 0.15)])
def test_llama_cpp_computes_the_same(
    teacher: Teacher, tmp_path: Path, file_format: str, tolerance: float
) -> None:
    draft = random_tiny(teacher)
    path = tmp_path / "draft.gguf"
    write_draft(draft, path, file_format, PROVENANCE)
    read_draft(draft, path)
    tokens = np.random.default_rng(0).integers(0, draft.shape.tokens, 30).astype(np.int32)
    expected = ours(draft, tokens)
    found = theirs(path, tokens)[:, : draft.shape.tokens - 1]
    assert expected.std() > 0.5
    np.testing.assert_allclose(found, expected, atol=tolerance)


def test_the_file_says_what_it_is_for(teacher: Teacher, toy_target: Path, tmp_path: Path) -> None:
    path = tmp_path / "draft.gguf"
    write_draft(random_tiny(teacher), path, "Q4_0", PROVENANCE)
    header = read_header(path)
    assert header.reduced is not None
    ids = teacher.vocabulary.target_ids
    assert np.array_equal(header.reduced.target_ids, [*ids, -1])
    assert header.reduced.unknown == len(ids)
    assert header.reduced.target_size == read_header(toy_target).vocabulary_size


def test_what_is_read_back_is_what_was_written(teacher: Teacher, tmp_path: Path) -> None:
    draft, path = random_tiny(teacher), tmp_path / "draft.gguf"
    before = {name: array.copy() for name, array in draft.tensors().items()}
    write_draft(draft, path, "F32", PROVENANCE)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.zero_()
    read_draft(draft, path)
    for name, array in draft.tensors().items():
        assert np.array_equal(array, before[name])
