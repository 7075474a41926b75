"""/openapi.json says what the server does: requests made up from it get what it promises."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]

OPERATIONS = [
    ("POST", "/v1/chat/completions", 40),
    ("POST", "/v1/completions", 40),
    ("POST", "/v1/responses", 30),
    ("POST", "/v1/embeddings", 20),
    ("POST", "/tokenize", 20),
    ("POST", "/detokenize", 20),
    ("POST", "/apply-template", 20),
    ("GET", "/v1/models", 1),
    ("GET", "/v1/models/{id}", 8),
    ("GET", "/health", 1),
    ("GET", "/metrics", 1),
    ("GET", "/openapi.json", 1),
]


@pytest.fixture(scope="session")
def schema(server: Any) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


@pytest.mark.parametrize(("method", "path", "examples"), OPERATIONS)
def test_made_up_requests(schema: Any, method: str, path: str, examples: int) -> None:
    @given(case=schema[path][method].as_strategy())
    @settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Any) -> None:
        if isinstance(case.body, dict):  # answers are to be short
            case.body["max_tokens"] = 2
            case.body.pop("max_completion_tokens", None)
            case.body.pop("n", None)
            case.body.pop("max_output_tokens", None)
        case.call_and_validate(checks=CHECKS, timeout=60)

    ask()


def test_everything_is_described(server: Any) -> None:
    document = httpx.get(f"{server.url}/openapi.json").json()
    told = {(m.upper(), path) for path, item in document["paths"].items() for m in item}
    assert told == {(method, path) for method, path, _ in OPERATIONS}
    chat = document["components"]["schemas"]["ChatRequest"]
    assert chat["required"] == ["messages"]
    assert {"temperature", "tools", "response_format", "edgespec"} <= set(chat["properties"])
    assert "security" not in document
