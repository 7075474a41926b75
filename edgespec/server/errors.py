"""What a client gets when something is wrong: OpenAI's error objects, and the right status."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from edgespec.errors import (
    CancelledError,
    ContextFullError,
    EdgespecError,
    GrammarError,
    TemplateError,
    UsageError,
)

__all__ = ["ApiError", "as_api_error", "error_response"]

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
