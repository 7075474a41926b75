"""Guards before every route: who may ask, from where, and what browsers must not do.

Every web page that a user opens can reach a server on the user's own machine. So the Host header is
checked, because a page can give its own name this address (DNS rebinding), and so is the origin of
a request.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgespec.errors import UsageError
from edgespec.server.errors import ApiError, error_response

__all__ = ["Access", "KeyGuard", "OriginGuard", "is_loopback"]

_OPEN = frozenset(("/", "/health", "/openapi.json")) | {
    f"/{file.name}" for file in Path(__file__).with_name("page").iterdir()
}
_DEFAULT_PORTS = {"http": 80, "https": 443}
_MOST_TOLD = 16
_NAME = re.compile(r"\[[0-9a-f:.]+\]|[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_log = logging.getLogger("edgespec.server")
_SECURITY_HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass(frozen=True)
class Access:
    """Who may use the server.

    Attributes:
        host: the address it listens on.
        api_key: the key that clients have to send; None if they need none.
        origins: of other web pages that may use it, as ``https://name:port``.
        more_keys: of other users, if there is an `api_key`.

    Raises:
        UsageError: anybody could use it, a key cannot be sent in a header, or an origin is
            malformed.
    """

    host: str = "127.0.0.1"
    api_key: str | None = None
    origins: Collection[str] = ()
    more_keys: Collection[str] = ()

    def __post_init__(self) -> None:
        if self.api_key is None and not is_loopback(self.host):
            raise UsageError(
                f"{self.host} can be reached from other machines: set EDGESPEC_API_KEY, so that "
                "not everybody there can use this server"
            )
        for key in self._keys:
            if not key or not key.isascii() or not key.isprintable() or " " in key:
                raise UsageError("the API key has to be printable ASCII without spaces, not empty")
        for origin in self.origins:
            sent = _as_sent(origin)
            if sent is None:
                raise UsageError(f"{origin!r} is no origin: give one like https://example.org:8443")
            if sent != origin:
                raise UsageError(f"{origin!r} is never what a browser sends: give {sent}")

    def knows_host(self, host: str | None) -> bool:
        """Return whether a Host header names this server."""
        parts = _split(f"//{host}")
        name = parts.hostname if parts else None
        if name is None:
            return False
        if not is_loopback(self.host):  # its names are not known here; the key protects it
            return True
        return is_loopback(name) or any(name == urlsplit(one).hostname for one in self.origins)

    def knows_origin(self, origin: str, host: str | None) -> bool:
        """Return whether pages of this origin may use the server: its own and allowed ones."""
        parts = _split(origin)
        own = parts is not None and host is not None and parts.netloc.lower() == host.lower()
        return own or origin in self.origins

    def knows_key(self, authorization: str | None, x_api_key: str | None = None) -> bool:
        """Return whether one of these headers has a key; wrong keys take equal time."""
        return self.key_of(authorization, x_api_key) is not None

    def key_of(self, authorization: str | None, x_api_key: str | None = None) -> str | None:
        """Return the key that one of these headers has; empty if none is needed."""
        if self.api_key is None:
            return ""
        scheme, _, given = (authorization or "").partition(" ")
        bearer = given if scheme.lower() == "bearer" else ""
        found = None
        for key in self._keys:
            named = _is_key(bearer, key), _is_key(x_api_key or "", key)
            found = key if any(named) else found
        return found

    @property
    def _keys(self) -> tuple[str, ...]:
        return () if self.api_key is None else (self.api_key, *self.more_keys)


class OriginGuard:
    """Refuses requests under a foreign name or from a foreign page; adds security headers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access
        self._told: set[str] = set()

    def _log(self, text: str, name: str) -> None:
        """Say it once of each name, and of a few names: anybody can invent more."""
        if name not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(name)
            _log.warning(text, name[:200])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with an error."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host"), headers.get("origin")
        send = _with_security_headers(send)
        if not self._access.knows_host(host):
            message = "this server does not answer to that Host: use localhost or 127.0.0.1"
            self._log("refused a request for the Host %r", host or "")
            await error_response(ApiError(403, message, code="host"))(scope, receive, send)
        elif origin is not None and not self._access.knows_origin(origin, host):
            message = "pages of this origin may not use the server: --allow-origin lets them"
            self._log("refused a page of %r: --allow-origin lets an origin use the server", origin)
            await error_response(ApiError(403, message, code="origin"))(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class KeyGuard:
    """Refuses requests without the key, except for the page, /health and /openapi.json."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with an error."""
        headers = Headers(scope=scope)
        known = self._access.knows_key(headers.get("authorization"), headers.get("x-api-key"))
        if scope["path"] not in _OPEN and not known:
            error = ApiError(
                401,
                "the API key is missing or wrong: send it as 'Authorization: Bearer KEY', or as "
                "'X-Api-Key: KEY'",
                kind="authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await error_response(error)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach that address or name."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_key(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.strip().encode("utf-8", "replace"), wanted.encode("ascii"))


def _as_sent(origin: str) -> str | None:
    """Return an origin as browsers write it: lower case, no usual port; None if it is none."""
    parts = _split(origin)
    if parts is None or parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        return None
    if parts.path or parts.query or parts.fragment or "@" in parts.netloc or origin[-1] in "?#":
        return None
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    try:
        port = parts.port
        name = name if name.isascii() else name.encode("idna").decode("ascii")
    except (ValueError, UnicodeError):
        return None
    if not _NAME.fullmatch(name):
        return None
    usual = port is None or port == _DEFAULT_PORTS[parts.scheme]
    return f"{parts.scheme}://{name}" + ("" if usual else f":{port}")


def _split(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _with_security_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(_SECURITY_HEADERS)
        await send(message)

    return sending
