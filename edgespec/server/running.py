"""Run the application: its socket, connections that stall, and how it stops."""

from __future__ import annotations

import asyncio
import math
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from edgespec.errors import EdgespecError, UsageError
from edgespec.server.errors import ApiError, error_response
from edgespec.server.guard import Admission

__all__ = ["Server", "open_socket"]

_PATIENCE_S = 15.0
_CONNECTIONS = 500
_LEAVE_S = 5.0  # after the grace period, to send what cancelled answers have


def open_socket(host: str, port: int) -> socket.socket:
    """Open a socket that is bound but does not listen yet.

    Raises:
        UsageError: the host has no address, or the port is invalid.
        EdgespecError: the address is in use, or its use is not permitted.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, OverflowError, UnicodeError):
        raise UsageError(f"cannot listen on {host!r}, port {port}: no such address") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise EdgespecError(
            f"cannot listen on {host}, port {port} ({reason}): choose another with --port"
        ) from None
    return listener


class Server(uvicorn.Server):
    """Serves until it is told to stop: by `stop`, SIGINT or SIGTERM.

    It then accepts nothing new, and running answers may finish within `grace_s` seconds; after
    that, or at a second signal, they end with what they have.

    Args:
        app: what is served.
        admission: ends answers.
        grace_s: seconds for running answers.
        announce: called once connections are accepted.
    """

    def __init__(
        self,
        app: ASGIApp,
        admission: Admission,
        grace_s: float,
        announce: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                self._admit(app),
                http=_Protocol,
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                log_level="critical",
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=math.ceil(grace_s + _LEAVE_S),
            )
        )
        self._admission, self._grace_s, self._announce = admission, grace_s, announce
        self._loop: asyncio.AbstractEventLoop | None = None
        self.signal: int | None = None

    def _admit(self, app: ASGIApp) -> ASGIApp:
        """Return the application, of which a crowd only gets the health."""

        async def admitted(scope: Scope, receive: Receive, send: Send) -> None:
            crowded = len(self.server_state.connections) > _CONNECTIONS
            if crowded and scope["path"] != "/health":
                message = f"there are more than {_CONNECTIONS} connections: try again later"
                error = ApiError(503, message, kind="server_error", headers={"Retry-After": "1"})
                await error_response(error)(scope, receive, send)
            else:
                await app(scope, receive, send)

        return admitted

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self._announce()

    def stop(self) -> None:
        """Stop; a second call stops at once. Any thread may call it."""
        self.force_exit, self.should_exit = self.should_exit, True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_to_stop)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop because of a signal."""
        self.signal = self.signal or sig
        self.stop()

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C stopped it."""
        return self.signal == signal.SIGINT

    def _begin_to_stop(self) -> None:
        assert self._loop is not None
        if self.force_exit:
            self._admission.close()
        else:
            self._loop.call_later(self._grace_s, self._admission.close)


class _Protocol(H11Protocol):
    """HTTP/1.1 that does not wait forever for a request's headers, or to deliver a response.

    An answer that is being generated has a time limit of its own.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(_PATIENCE_S, self._watch, self._progress())

    def _progress(self) -> tuple[Any, ...]:
        return self.cycle, self.transport.is_closing(), self.transport.get_write_buffer_size()

    def _watch(self, before: tuple[Any, ...]) -> None:
        if self not in self.connections:
            return
        now = self._progress()
        answering = self.cycle is not None and not self.cycle.response_complete
        if now == before and (self.transport.is_closing() or not answering):
            self.transport.abort()
        else:
            self.loop.call_later(_PATIENCE_S, self._watch, now)
