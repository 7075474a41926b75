"""What holds for drafts of every kind: sampling is exact, and broken weights are named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from edgespec import Engine, EngineOptions
from edgespec.backend import capabilities
from edgespec.errors import NumericalError
from tests.runtime.exact import GREEDY, drawn, joint, p_value, run

LAYERS = 30
A_COMMA = 28
PROMPT, LENGTH, TOP_K = "A B C A B C A B", 3, 3

pytestmark = pytest.mark.skipif(
    capabilities().tinyblas,
    reason="this build's LLAMAFILE kernels round batches differently: rebuild as the README says",
)
needs_eagle = pytest.mark.skipif(
    not capabilities().eagle, reason="this build of llama.cpp cannot run EAGLE-3 heads"
)


@pytest.fixture(scope="module")
def exact(plain: Any, open_engine: Any) -> dict[tuple[int, ...], float]:
    return joint(plain, open_engine().tokenize(PROMPT).tolist(), LENGTH, TOP_K)


@pytest.fixture(scope="module")
def make(
    built_models: ModuleType,
    default_model: Path,
    reworded_model: Path,
    exact: dict[tuple[int, ...], float],
    open_engine: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Path]:
    """Drafts some of whose likely tokens are missing: those come from the residual alone."""
    folder = tmp_path_factory.mktemp("kinds")
    likely = [token for path in exact for token in path]

    def build(kind: str) -> Path:
        path = folder / f"{kind}.gguf"
        if kind == "eagle":
            common = [token for token, _ in Counter(likely).most_common(8)]
            return built_models.write_eagle(default_model, path, np.unique(common))
        if kind == "reduced":
            kept = np.unique([*open_engine().tokenize(PROMPT), *sorted(set(likely))[::2]])
            return built_models.reduce_vocabulary(default_model, path, kept, LAYERS, A_COMMA)
        return reworded_model

    return build


@pytest.mark.parametrize(
    ("kind", "runs"),
    [pytest.param("eagle", 200, marks=needs_eagle), ("reduced", 250), ("reworded", 500)],
)
@pytest.mark.slow
def test_rejection_sampling_has_the_targets_joint_distribution(
    kind: str,
    runs: int,
    make: Callable[[str], Path],
    exact: dict[tuple[int, ...], float],
    open_engine: Any,
) -> None:
    """Three tokens end to end against the product of p, at a false-alarm rate of 1e-3 each."""
    engine = open_engine(draft=make(kind), k=2)
    counts, proposed, accepted = drawn(engine, PROMPT, runs, LENGTH, TOP_K)
    assert 0 < accepted < proposed
    assert set(counts) <= set(exact)
    assert p_value(counts, exact, runs) > 1e-3


@pytest.mark.parametrize(
    ("kind", "value"),
    [pytest.param("eagle", np.nan, marks=needs_eagle), ("reduced", np.nan), ("reworded", np.inf)],
)
def test_broken_weights_are_named(
    kind: str, value: float, make: Callable[[str], Path], default_model: Path, tmp_path: Path
) -> None:
    whole, broken = make(kind), tmp_path / "broken.gguf"
    data = bytearray(whole.read_bytes())
    norm = next(t for t in GGUFReader(whole).tensors if t.name == "output_norm.weight")
    data[norm.data_offset : norm.data_offset + 128] = np.full(32, value, np.float32).tobytes()
    broken.write_bytes(bytes(data))
    # A fixed k: the draft is asked, whatever it costs.
    options = EngineOptions(draft=str(broken), k=2, threads=2, context=256)
    with Engine(default_model, options) as engine, pytest.raises(NumericalError, match="broken"):
        run(engine, "sea and sand", GREEDY)
