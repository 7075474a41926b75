"""The application: its routes and middleware, and recent answers to copy from, by key."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from edgespec import __version__
from edgespec.compat.openai.responses_api import ResponseEvents
from edgespec.drafters import EarlierTexts
from edgespec.errors import UsageError
from edgespec.runtime.embedding import Embedder
from edgespec.server.description import describe
from edgespec.server.errors import ApiError, error_response, parse, read_body
from edgespec.server.generating import Defaults, Job, prepare, render
from edgespec.server.guard import Access, Admission, Counting, KeyGuard, Metrics, OriginGuard
from edgespec.server.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    GenerationRequest,
    ResponseRequest,
    TemplateRequest,
    TokenizeRequest,
    in_items,
)
from edgespec.server.streaming import Answer, EmbeddingAnswer

if TYPE_CHECKING:
    from edgespec.runtime.engine import Engine

__all__ = ["Limits", "RecentAnswers", "Service", "make_app"]

_USERS = 32


class RecentAnswers:
    """Keeps the latest answers of the users that asked last.

    Args:
        tokens: the most of each user; 0 keeps nothing.
        users: the most of them.
    """

    def __init__(self, tokens: int, users: int = _USERS) -> None:
        self._tokens, self._users = tokens, users
        self._texts: OrderedDict[str, EarlierTexts] = OrderedDict()

    def of(self, key: str) -> EarlierTexts | None:
        """Return where the answers to this key are kept; empty is whoever needs no key."""
        if not self._tokens:
            return None
        texts = self._texts.setdefault(key, EarlierTexts(self._tokens))
        self._texts.move_to_end(key)
        if len(self._texts) > self._users:
            self._texts.popitem(last=False)
        return texts

    @property
    def nbytes(self) -> int:
        """Memory that all of them take."""
        return sum(texts.nbytes for texts in [*self._texts.values()])


T = TypeVar("T")

_LONGEST_S = 86400.0
_FILES = StaticFiles(directory=Path(__file__).with_name("page"), html=True)


@dataclass(frozen=True)
class Limits:
    """What a request may take.

    Attributes:
        parallel: generations that run at once; they take turns at the engine.
        queue: number of requests that may wait.
        seconds: for waiting and generating.
        body: most bytes of a request's body.
        grace: seconds for running generations when the server is told to stop.

    Raises:
        UsageError: a value is out of range.
    """

    parallel: int = 4
    queue: int = 16
    seconds: float = 600.0
    body: int = 4 << 20
    grace: float = 10.0

    def __post_init__(self) -> None:
        if self.parallel < 1:
            raise UsageError(f"parallel is {self.parallel}: it has to be 1 or more")
        if self.queue < 0:
            raise UsageError(f"queue is {self.queue}: it has to be 0 or more")
        if not 0 < self.seconds <= _LONGEST_S:
            raise UsageError(f"timeout is {self.seconds}: it has to be above 0 s, up to a day")
        if self.body < 1:
            raise UsageError(f"max-body is {self.body} bytes: it has to be 1 or more")
        if not 0 <= self.grace <= _LONGEST_S:
            raise UsageError(f"grace is {self.grace}: it has to be 0 s or more, up to a day")


@dataclass
class Service:
    """What the routes need.

    Attributes:
        engine: an open one, or an embedding model in its place; not closed here.
        defaults: for what requests do not specify.
        access: who may use it.
        limits: what a request may take.
        page: whether there is a web page.
        recent: tokens of each key's latest answers that prompt lookup may copy from.
        pooling: makes embeddings of an engine's hidden states; without it, it makes none.
    """

    engine: Engine | Embedder
    defaults: Defaults
    access: Access = field(default_factory=Access)
    limits: Limits = field(default_factory=Limits)
    page: bool = True
    recent: int = 0
    pooling: str | None = None

    def __post_init__(self) -> None:
        self.created = int(time.time())
        # Answers to one seed are the same as long as this is.
        facts = f"{__version__} {self.engine.fingerprint}"
        self.fingerprint = f"fp_{hashlib.sha256(facts.encode()).hexdigest()[:12]}"
        self.admission = Admission(self.limits.parallel, self.limits.queue)
        self._recent = RecentAnswers(self.recent)
        self.metrics = Metrics(
            self.admission, lambda: self.engine.waiting, lambda: self._recent.nbytes
        )
        # One at a time: what a body of the greatest length becomes takes ten times its memory.
        self._reader = ThreadPoolExecutor(1, "edgespec-bodies")

    async def _asked(self, request: Request, read: Callable[[bytes], T]) -> T:
        """Read the body of a request outside the event loop, which goes on meanwhile."""
        body = await read_body(request, self.limits.body)
        return await asyncio.get_running_loop().run_in_executor(self._reader, read, body)

    # -- generating -------------------------------------------------------------------------

    async def chat(self, request: Request) -> Answer:
        """Answer POST /v1/chat/completions."""
        return self._answer(request, await self._asked(request, partial(parse, ChatRequest)))

    async def complete(self, request: Request) -> Answer:
        """Answer POST /v1/completions."""
        return self._answer(request, await self._asked(request, partial(parse, CompletionRequest)))

    async def respond(self, request: Request) -> Answer:
        """Answer POST /v1/responses."""

        def read(body: bytes) -> tuple[ChatRequest, ResponseEvents]:
            asked = parse(ResponseRequest, body)
            return asked.as_chat(), ResponseEvents(self.engine.model_name, asked.facts())

        return self._answer(request, *await self._asked(request, read))

    async def embed(self, request: Request) -> EmbeddingAnswer:
        """Answer POST /v1/embeddings."""
        asked = await self._asked(request, partial(parse, EmbeddingRequest))
        return EmbeddingAnswer(
            asked,
            self._embedder,
            self.admission,
            self.metrics,
            self.limits.seconds,
            self.engine.model_name,
        )

    def _embedder(self) -> Embedder:
        if isinstance(self.engine, Embedder):
            return self.engine
        if self.pooling is None:
            message = (
                f"{self.engine.model_name} generates text: start the server with --pooling mean "
                "for embeddings of its hidden states, or with an embedding model for better ones"
            )
            raise ApiError(400, message, code="unsupported")
        return self.engine.embedder(self.pooling)

    @property
    def _writer(self) -> Engine:
        """What generates text.

        Raises:
            ApiError: nothing does.
        """
        if isinstance(self.engine, Embedder):
            message = f"{self.engine.model_name} is an embedding model: it generates no text"
            raise ApiError(400, message, code="unsupported")
        return self.engine

    def _answer(
        self, request: Request, asked: GenerationRequest, events: ResponseEvents | None = None
    ) -> Answer:
        headers = request.headers
        key = self.access.key_of(headers.get("authorization"), headers.get("x-api-key"))
        recent = None if key is None else self._recent.of(key)

        def prepared() -> Job:
            try:
                return prepare(self._writer, asked, self.defaults, recent)
            except ApiError as error:
                raise (error if events is None else in_items(error)) from None

        return Answer(
            asked,
            prepared,
            self.admission,
            self.metrics,
            self.limits.seconds,
            {"system_fingerprint": self.fingerprint},
            events,
        )

    # -- tokens -----------------------------------------------------------------------------

    async def tokenize(self, request: Request) -> Response:
        """Answer POST /tokenize."""
        asked = await self._asked(request, partial(parse, TokenizeRequest))
        tokens = await asyncio.to_thread(
            self.engine.vocabulary.tokenize,
            asked.content,
            add_special=asked.add_special,
            parse_special=asked.parse_special,
        )
        told: list[Any] = tokens.tolist()
        if asked.with_pieces:
            told = [{"id": token, "piece": self._piece(token)} for token in told]
        return JSONResponse({"tokens": told, "count": len(told)})

    async def detokenize(self, request: Request) -> Response:
        """Answer POST /detokenize."""
        asked = await self._asked(request, partial(parse, DetokenizeRequest))
        return JSONResponse({"content": await asyncio.to_thread(self._text_of, asked.tokens)})

    def _text_of(self, tokens: list[int]) -> str:
        vocabulary = self.engine.vocabulary
        if any(not 0 <= token < vocabulary.size for token in tokens):
            message = f"tokens: one is not in the vocabulary of {vocabulary.size}"
            raise ApiError(400, message, param="tokens")
        return vocabulary.decode(tokens, special=True)

    async def apply_template(self, request: Request) -> Response:
        """Answer POST /apply-template."""
        asked = await self._asked(request, partial(parse, TemplateRequest))
        text = await asyncio.to_thread(render, self._writer, asked)
        return JSONResponse({"prompt": text})

    def _piece(self, token: int) -> str | list[int]:
        data = self.engine.vocabulary.piece(token, special=True)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return list(data)

    # -- telling ----------------------------------------------------------------------------

    async def models(self, request: Request) -> Response:
        """Answer GET /v1/models."""
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """Answer GET /v1/models/{id}."""
        name = request.path_params["id"]
        if name != self.engine.model_name:
            message = f"there is no model {name[:200]!r}: this server has {self.engine.model_name}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return JSONResponse(self._model())

    def _model(self) -> dict[str, object]:
        return {
            "id": self.engine.model_name,
            "object": "model",
            "created": self.created,
            "owned_by": "edgespec",
            "context_length": self.engine.context_length,
        }

    async def health(self, request: Request) -> Response:
        """Answer GET /health."""
        return JSONResponse({"status": "ok"})

    async def show_metrics(self, request: Request) -> Response:
        """Answer GET /metrics."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def description(self, request: Request) -> Response:
        """Answer GET /openapi.json."""
        return JSONResponse(describe(keyed=self.access.api_key is not None))

    async def show_page(self, request: Request) -> Response:
        """Answer GET / and the files of that page.

        They change together, so a browser checks each time whether its copies are current.
        """
        file = request.path_params.get("file", ".")
        response = await _FILES.get_response(file, request.scope)
        response.headers["cache-control"] = "no-cache"
        return response


def make_app(service: Service) -> Starlette:
    """Make the ASGI application of a service."""
    routes = [
        *(
            Route(f"{prefix}{path}", handler, methods=methods)
            for prefix in ("/v1", "")  # some clients leave it out
            for path, handler, methods in (
                ("/chat/completions", service.chat, ["POST"]),
                ("/completions", service.complete, ["POST"]),
                ("/responses", service.respond, ["POST"]),
                ("/embeddings", service.embed, ["POST"]),
                ("/models", service.models, ["GET"]),
                ("/models/{id:path}", service.model, ["GET"]),
            )
        ),
        Route("/tokenize", service.tokenize, methods=["POST"]),
        Route("/detokenize", service.detokenize, methods=["POST"]),
        Route("/apply-template", service.apply_template, methods=["POST"]),
        Route("/health", service.health),
        Route("/metrics", service.show_metrics),
        Route("/openapi.json", service.description),
    ]
    paths = {route.path for route in routes} | {"/"}
    page = [Route("/", service.show_page), Route("/{file}", service.show_page)]
    return Starlette(
        routes=[*routes, *(page if service.page else [])],
        middleware=[
            Middleware(Counting, service.metrics, paths),
            Middleware(OriginGuard, service.access),
            Middleware(
                CORSMiddleware,
                allow_origins=list(service.access.origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
            ),
            Middleware(KeyGuard, service.access),
        ],
        exception_handlers={
            ApiError: _tell,
            HTTPException: _tell,
            ClientDisconnect: _tell,
            Exception: _tell,
        },
    )


async def _tell(request: Request, error: Exception) -> Response:
    return error_response(error)
