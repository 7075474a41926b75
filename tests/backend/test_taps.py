"""Hidden states: the first layer's input is the token's embedding, and taps change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize

from edgespec.backend import Context, ContextOptions, LayerTaps, Model, capabilities
from edgespec.errors import UsageError

pytestmark = pytest.mark.skipif(
    not capabilities().layer_taps, reason="this build of llama.cpp exports no hidden states"
)


@pytest.fixture(scope="module")
def context(default_model: Path) -> Iterator[Context]:
    options = ContextOptions(length=256, threads=2)
    with Model(default_model) as model, Context(model, options) as context:
        yield context


def test_rows_of_the_first_layer_are_embeddings(default_model: Path, context: Context) -> None:
    tokens = context.model.vocabulary.tokenize("The sea is deep and cold.")
    context.clear()
    expected = context.evaluate(tokens, 2).copy()
    taps = LayerTaps(context, (0, 15))
    context.clear()
    logits = context.evaluate(tokens, 2)
    assert np.array_equal(logits, expected)

    table = next(t for t in GGUFReader(default_model).tensors if t.name == "token_embd.weight")
    embeddings = dequantize(table.data[tokens], table.tensor_type)
    rows = taps.rows(0, len(tokens))
    assert rows.shape == (len(tokens), context.model.embedding_length)
    assert not rows.flags.owndata
    np.testing.assert_allclose(rows, embeddings, rtol=1e-5, atol=1e-6)
    # Further up every row depends on what stands before it.
    assert not np.allclose(taps.rows(15, len(tokens)), embeddings, atol=0.1)
    taps.close()


def test_layers_that_do_not_exist(context: Context) -> None:
    with pytest.raises(UsageError, match="between 0 and"):
        LayerTaps(context, (context.model.block_count,))
    taps = LayerTaps(context, (3,))
    with pytest.raises(UsageError, match="not tapped"):
        taps.rows(4, 1)
    taps.close()
