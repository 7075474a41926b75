"""``/openapi.json``: the interface as a document, generated from the shapes of requests."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from edgespec import __version__
from edgespec.server.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    ResponseRequest,
    TemplateRequest,
    TokenizeRequest,
)

__all__ = ["describe"]

Json = dict[str, Any]

_SHAPES: tuple[type[BaseModel], ...] = (
    ChatRequest,
    CompletionRequest,
    ResponseRequest,
    EmbeddingRequest,
    TokenizeRequest,
    DetokenizeRequest,
    TemplateRequest,
)
_ERRORS = {
    "400": "the request is wrong",
    "401": "the API key is missing or wrong",
    "403": "foreign Host or Origin",
    "408": "the body did not come in time",
    "413": "the body is too long",
    "429": "the queue is full: see Retry-After",
    "500": "the generation failed",
    "503": "the server is stopping",
    "504": "the time limit was over",
}


def describe(*, keyed: bool) -> Json:
    """Return the OpenAPI document.

    Args:
        keyed: whether clients have to send a key.
    """
    _, definitions = models_json_schema(
        [(shape, "validation") for shape in _SHAPES],
        ref_template="#/components/schemas/{model}",
    )
    components: Json = {"schemas": {**definitions["$defs"], **_results()}}
    document: Json = {
        "openapi": "3.1.0",
        "info": {"title": "edgespec", "version": __version__},
        "paths": _paths(),
        "components": components,
    }
    if keyed:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _paths() -> Json:
    name = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        "/v1/chat/completions": {"post": _generation("Answer a conversation", "Chat")},
        "/v1/completions": {"post": _generation("Continue a text", "Completion")},
        "/v1/responses": {"post": _generation("Answer a conversation in items", "Response")},
        "/v1/embeddings": {
            "post": _asking("Make vectors of texts", "Embedding", "429", "500", "503", "504")
        },
        "/v1/models": {"get": _reading("The model, as a list", _of("Models"), "401", "403")},
        "/v1/models/{id}": {
            "get": _reading("The model", _of("Model"), "401", "403", "404", parameters=[name])
        },
        "/tokenize": {"post": _asking("Split a text into tokens", "Tokenize")},
        "/detokenize": {"post": _asking("Join tokens to a text", "Detokenize")},
        "/apply-template": {"post": _asking("Render a conversation", "Template")},
        "/health": {"get": _reading("Whether it runs", _of("Health"), "403")},
        "/metrics": {"get": _reading("For Prometheus", {"text/plain": {}}, "401", "403")},
        "/openapi.json": {"get": _reading("This", {"application/json": {}}, "403")},
    }


def _body(name: str) -> Json:
    return {"required": True, "content": _of(f"{name}Request")}


def _asking(summary: str, name: str, *more: str) -> Json:
    errors = ("400", "401", "403", "408", "413", *more)
    return {"requestBody": _body(name), **_reading(summary, _of(f"{name}Answer"), *errors)}


def _generation(summary: str, name: str) -> Json:
    event = _object(data={"type": "string", "description": "a chunk in JSON, or [DONE]"})
    streamed = {"text/event-stream": {"schema": event}}
    return {
        "summary": summary,
        "requestBody": _body(name),
        "responses": {
            "200": {"description": "the answer", "content": {**_of(f"{name}Answer"), **streamed}},
            **_failures(*_ERRORS),
        },
    }


def _reading(summary: str, content: Json, *errors: str, **more: Any) -> Json:
    good = {"200": {"description": "good", "content": content}}
    return {"summary": summary, **more, "responses": {**good, **_failures(*errors)}}


def _failures(*statuses: str) -> Json:
    known = {**_ERRORS, "404": "no such thing"}
    return {one: {"description": known[one], "content": _of("Error")} for one in statuses}


def _of(name: str) -> Json:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _results() -> Json:
    """Return the shapes of responses, as far as clients rely on them."""
    text, number = {"type": "string"}, {"type": "integer"}
    nullable = {"type": ["string", "null"]}
    error = _object(message=text, type=text, param=nullable, code=nullable)
    model = _object(
        id=text, object={"const": "model"}, created=number, owned_by=text, context_length=number
    )
    usage = _object(prompt_tokens=number, completion_tokens=number, total_tokens=number)
    shared = {
        "id": text,
        "created": number,
        "model": text,
        "usage": usage,
        "system_fingerprint": text,
        "choices": {"type": "array", "minItems": 1, "items": {"type": "object"}},
    }
    return {
        "Error": _object(error=error),
        "Health": _object(status={"const": "ok"}),
        "Model": model,
        "Models": _object(object={"const": "list"}, data={"type": "array", "items": model}),
        "ResponseAnswer": _object(
            id=text,
            object={"const": "response"},
            created_at=number,
            model=text,
            status={"enum": ["completed", "incomplete"]},
            output={"type": "array", "items": {"type": "object"}},
            usage=_object(input_tokens=number, output_tokens=number, total_tokens=number),
        ),
        "EmbeddingAnswer": _object(
            object={"const": "list"},
            data={"type": "array", "items": {"type": "object"}},
            model=text,
            usage=_object(prompt_tokens=number, total_tokens=number),
        ),
        "TokenizeAnswer": _object(tokens={"type": "array"}, count=number),
        "DetokenizeAnswer": _object(content=text),
        "TemplateAnswer": _object(prompt=text),
        "ChatAnswer": _object(object={"const": "chat.completion"}, **shared),
        "CompletionAnswer": _object(object={"const": "text_completion"}, **shared),
    }


def _object(**properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(properties)}
