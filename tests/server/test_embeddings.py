"""OpenAI's own client asks for embeddings: what it gets is what the model says."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from edgespec import Embedder, load_embedder

TEXTS = ["the cat sat.", "a", "dogs bark"]


@pytest.fixture(scope="module")
def embedder(encoder_model: Path) -> Iterator[Embedder]:
    with load_embedder(encoder_model) as embedder:
        yield embedder


@pytest.fixture(scope="module")
def embedding_server(serve: Any, embedder: Embedder) -> Iterator[Any]:
    with serve(engine=embedder) as running:
        yield running


def test_vectors_are_the_models(embedding_server: Any, embedder: Embedder) -> None:
    client = embedding_server.client()
    expected = embedder.embed(TEXTS)
    tokens = [embedder.tokenize(text).tolist() for text in TEXTS]
    for given in (TEXTS, tokens):
        answer = client.embeddings.create(model="any", input=given)
        assert [one.index for one in answer.data] == [0, 1, 2]
        assert np.array_equal(np.array([one.embedding for one in answer.data], "f4"), expected)
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, tokens))
        assert answer.model == embedder.model_name
    for single in (TEXTS[0], tokens[0]):
        (one,) = client.embeddings.create(model="any", input=single).data
        assert np.array_equal(np.array(one.embedding, "f4"), expected[0])


def test_encodings_say_the_same(embedding_server: Any, embedder: Embedder) -> None:
    def ask(**fields: Any) -> Any:
        answer = embedding_server.post("/v1/embeddings", {"input": TEXTS[0], **fields})
        return answer.json()["data"][0]["embedding"]

    expected = embedder.embed(TEXTS[0])
    assert ask() == ask(encoding_format="float") == expected.tolist()
    assert base64.b64decode(ask(encoding_format="base64")) == expected.astype("<f4").tobytes()


def test_fewer_dimensions_are_the_first_with_length_one(
    embedding_server: Any, embedder: Embedder
) -> None:
    client = embedding_server.client()
    (one,) = client.embeddings.create(model="any", input="a", dimensions=16).data
    first = embedder.embed("a")[:16]
    np.testing.assert_allclose(one.embedding, first / np.linalg.norm(first), rtol=1e-5)


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "input", "Field required"),
        ({"input": []}, "input", "at least 1 item"),
        ({"input": 7}, "input", "valid"),
        ({"input": [[]]}, "input", "text 1 is empty"),
        ({"input": [10**30]}, "input", "not in the vocabulary"),
        ({"input": [5, 900]}, "input", "not in the vocabulary"),
        ({"input": ["a"] * 2049}, "input", "2048 are the most"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "'float' or 'base64'"),
        ({"input": "a", "dimensions": 0}, "dimensions", "greater than or equal to 1"),
        ({"input": "a", "dimensions": 65}, "dimensions", "at most 64"),
    ],
)
def test_wrong_requests(embedding_server: Any, body: Any, param: str, message: str) -> None:
    answer = embedding_server.post("/v1/embeddings", body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert message in error["message"]


def test_a_text_that_is_too_long(embedding_server: Any) -> None:
    answer = embedding_server.post("/v1/embeddings", {"input": ["a", "a " * 500]})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "exceeds the available context size: text 2 has 502 tokens" in error["message"]


def test_an_embedding_model_generates_no_text(embedding_server: Any, embedder: Embedder) -> None:
    client = embedding_server.client()
    for ask in (
        lambda: client.completions.create(model="any", prompt="a"),
        lambda: client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": "a"}]
        ),
        lambda: client.responses.create(model="any", input="a"),
    ):
        with pytest.raises(openai.BadRequestError, match="is an embedding model"):
            ask()
    assert client.models.list().data[0].id == embedder.model_name
    tokens = embedding_server.post("/tokenize", {"content": "the cat", "add_special": True}).json()
    assert tokens["tokens"] == embedder.tokenize("the cat").tolist()
    assert embedding_server.gauge("edgespec_waiting") == 0


def test_a_model_that_generates_needs_to_be_told(serve: Any, engine: Any, server: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="generates text: start the server with"):
        server.client().embeddings.create(model="any", input="a river")
    with serve(pooling="mean") as running:
        (one,) = running.client().embeddings.create(model="any", input="a river").data
        assert np.array_equal(np.array(one.embedding, "f4"), engine.embed("a river"))


def test_a_client_that_leaves_ends_it(serve: Any, engine: Any) -> None:
    """What it asked for would take minutes; the next one gets its turn at once."""
    with serve(pooling="mean", parallel=1, queue=0) as running:
        body = httpx.Request("POST", running.url, json={"input": ["word " * 900] * 500}).read()
        with socket.create_connection(running.address) as leaving:
            head = f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
            leaving.sendall(f"{head}\r\n\r\n".encode() + body)
            while not running.service.admission.running:
                pass
        while running.service.admission.running or running.service.admission.waiting:
            pass
        assert running.post("/v1/embeddings", {"input": "a"}).status_code == 200


def test_the_time_limit_ends_it(serve: Any) -> None:
    with serve(pooling="mean", seconds=0.5) as running:
        answer = running.post("/v1/embeddings", {"input": ["word " * 900] * 500})
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
