"""Bodies of requests, read and judged, and what a client gets when something is wrong.

Errors are OpenAI's objects, with the right status.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from edgespec.errors import (
    CancelledError,
    ContextFullError,
    EdgespecError,
    GrammarError,
    TemplateError,
    UsageError,
)

__all__ = ["ApiError", "as_api_error", "error_response", "parse", "read_body", "wrong_field"]

_log = logging.getLogger("edgespec.server")

_INVALID = "invalid_request_error"


class ApiError(Exception):
    """An error as the client sees it.

    Args:
        status: of HTTP.
        message: one line.
        kind: the ``type`` of OpenAI's error object.
        param: the field of the request that is wrong.
        code: for programs.
        headers: additional headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = _INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers
        self.body: dict[str, Any] = {
            "error": {"message": message, "type": kind, "param": param, "code": code}
        }


def as_api_error(error: Exception) -> ApiError:
    """Turn any error into one for the client; log unexpected ones and hide their details."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        message = f"{error.detail}: /openapi.json says what there is"
        return ApiError(error.status_code, message, headers=error.headers)
    if isinstance(error, ContextFullError):
        message = f"the request exceeds the available context size: {error}"
        return ApiError(400, message, code="context_length_exceeded")
    if isinstance(error, (UsageError, TemplateError, GrammarError)):
        return ApiError(400, str(error))
    if isinstance(error, CancelledError):
        return ApiError(503, "the server is stopping", kind="server_error")
    _log.error("%s: %s", type(error).__name__, error, exc_info=_log.isEnabledFor(logging.INFO))
    known = isinstance(error, EdgespecError)
    message = str(error) if known else "internal error: the server's log says more"
    return ApiError(500, message, kind="server_error")


def error_response(error: Exception) -> JSONResponse:
    """Return the response for an error."""
    told = as_api_error(error)
    return JSONResponse(told.body, told.status, headers=told.headers)


# -- bodies of requests: read up to a limit, and judged -------------------------------------------

_NONE: tuple[Any, ...] = (None, [], {}, "", "none", "auto", False)
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "functions": (_NONE, "send tools, their newer form"),
    "function_call": (_NONE, "send tool_choice, its newer form"),
    "modalities": ((None, [], ["text"]), "answers are text"),
    "audio": (_NONE, "answers are text"),
    "web_search_options": (_NONE, "this server does not reach the web"),
    "best_of": ((None, 1), "send n, and choose"),
    "guided_json": (_NONE, "send response_format with a json_schema"),
    "guided_choice": (_NONE, "send response_format with an enum in a json_schema"),
    "guided_regex": (_NONE, "send response_format with a pattern in a json_schema"),
    "guided_grammar": (_NONE, "send grammar"),
    "structured_outputs": (_NONE, "send response_format with a json_schema"),
    "lora": (_NONE, "merge adapters into the model's file"),
}
"""Fields that would change the answer and are not obeyed: harmless values, and what to do."""

Shape = TypeVar("Shape", bound=BaseModel)


def parse(shape: type[Shape], body: bytes) -> Shape:
    """Read the body of a request.

    What it becomes is freed here, and never looked through for garbage: both would hold up the
    other threads, which cannot run meanwhile, for a second and more.

    Raises:
        ApiError: it is not JSON, or not of that shape; the message names one error.
    """
    with _uncollected():
        found = _parsed(shape, body)
    if isinstance(found, ApiError):
        raise found
    return found


@contextmanager
def _uncollected() -> Iterator[None]:
    """Collect no garbage while millions of objects are made that are none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _parsed(shape: type[Shape], body: bytes) -> Shape | ApiError:
    """Return an error instead of raising it, as that would keep what was read."""
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        return ApiError(400, f"the body is not JSON: {error}", code="invalid_json")
    for name, (harmless, instead) in _REFUSED.items():
        if isinstance(value, dict) and value.get(name) not in harmless:
            message = f"{name} is not supported: {instead}"
            return ApiError(400, message, param=name, code="unsupported_parameter")
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        return wrong_field(value, error)


def wrong_field(value: Any, error: ValidationError) -> ApiError:
    """Choose the most helpful error, rather than one about a type in a union."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    worst = max(errors, key=lambda one: (not one["type"].endswith("_type"), len(one["loc"])))
    path = []
    for step in worst["loc"]:
        try:  # a step that is not a key or index names a branch of a union
            value = value[step]
        except (KeyError, IndexError, TypeError):
            continue
        path.append(str(step))
    if worst["type"] == "missing":
        path.append(str(worst["loc"][-1]))
    param = ".".join(path)[:200]
    message = f"{param or 'the body'}: {worst['msg']}"
    return ApiError(400, message, param=param or None, code=worst["type"])


_BODY_SECONDS = 60.0
_DISCARDED = 16
"""How many times the limit is read and dropped: a client that still sends hears no answer."""


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body, with at most `limit` bytes of it in memory.

    Raises:
        ApiError: it is longer (413), or does not come (408).
    """
    try:
        body = await asyncio.wait_for(_read(request, limit), _BODY_SECONDS)
    except asyncio.TimeoutError:
        message = f"the body did not come within {_BODY_SECONDS:.0f} s"
        raise ApiError(408, message, headers={"Connection": "close"}) from None
    if body is None:
        message = f"the body has more than {limit} bytes: send a shorter request"
        raise ApiError(413, message, code="too_large", headers={"Connection": "close"})
    return body


async def _read(request: Request, limit: int) -> bytes | None:
    body, size = bytearray(), 0
    async for part in request.stream():
        size += len(part)
        if size > limit * _DISCARDED:
            break
        if size <= limit:
            body += part
    return bytes(body) if size <= limit else None
