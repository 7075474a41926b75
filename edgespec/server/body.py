"""Read the body of a request, up to a limit."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from edgespec.server.errors import ApiError

__all__ = ["read_body"]

_SECONDS = 60.0
_DISCARDED = 16
"""How many times the limit is read and dropped: a client that still sends hears no answer."""


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body, with at most `limit` bytes of it in memory.

    Raises:
        ApiError: it is longer (413), or does not come (408).
    """
    try:
        body = await asyncio.wait_for(_read(request, limit), _SECONDS)
    except asyncio.TimeoutError:
        message = f"the body did not come within {_SECONDS:.0f} s"
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
