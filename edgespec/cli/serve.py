"""`edgespec serve`: an OpenAI-compatible server."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click

from edgespec.cli.opening import open_for_serving
from edgespec.cli.options import (
    engine_options,
    make_engine_options,
    make_sampling,
    sampling_options,
)
from edgespec.extras import require_extra
from edgespec.runtime.options import ANSWER_TOKENS, NO_LIMIT

__all__ = ["serve"]

_INTERRUPTED = 130
_MOST_KEYS = 1 << 16  # bytes of a file with keys


@click.command()
@engine_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--api-key",
    envvar="EDGESPEC_API_KEY",
    metavar="KEY",
    help="Key that clients have to send. Other users see it here: better set EDGESPEC_API_KEY.",
)
@click.option(
    "--api-key-file", metavar="FILE", help="Read the key from a file, or one of each user a line."
)
@click.option(
    "--allow-origin",
    multiple=True,
    metavar="ORIGIN",
    help="Web pages of this origin may use the server, and it answers to that host's name.",
)
@click.option(
    "--parallel",
    default=4,
    show_default=True,
    help="Answers that are written at the same time, in turns.",
)
@click.option("--queue", default=16, show_default=True, help="Requests that may wait.")
@click.option(
    "--timeout", default=600.0, show_default=True, help="Seconds that a request may take."
)
@click.option("--max-body", default=4, show_default=True, help="MiB that a request may have.")
@click.option(
    "--grace",
    default=10.0,
    show_default=True,
    help="Seconds that running answers get when the server stops.",
)
@click.option(
    "--lookup-answers",
    type=click.IntRange(0, 1 << 18),
    default=0,
    show_default=True,
    metavar="TOKENS",
    help="Tokens of recent answers that prompt lookup may copy from, of each key its own; 0: none.",
)
@click.option("--alias", metavar="NAME", help="Name of the model to tell clients.")
@click.option(
    "--max-tokens",
    type=int,
    default=ANSWER_TOKENS,
    show_default=True,
    help="Most tokens of an answer whose request says nothing; -1: until the context is full.",
)
@click.option(
    "--overflow",
    type=click.Choice(["stop", "shift"]),
    default="stop",
    show_default=True,
    help="When the context is full: end, or drop the oldest half.",
)
@click.option(
    "--chat-template",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Chat template (Jinja) in place of the model's own.",
)
@click.option(
    "--pooling",
    type=click.Choice(["mean", "cls", "last"]),
    help="How /v1/embeddings makes a text's vector; only needed for models that generate text.",
)
@click.option("--allow-loops", is_flag=True, help="Do not end answers that only repeat themselves.")
@click.option("--no-ui", is_flag=True, help="Without the web page.")
@sampling_options
def serve(**values: Any) -> int:
    """Serve OpenAI's HTTP interface, and a web page.

    An embedding model serves /v1/embeddings. Sampling options apply where a request sets none.
    """
    require_extra("serve", "the server")
    from edgespec.runtime.embedding import Embedder
    from edgespec.server.app import Limits, Service, make_app
    from edgespec.server.generating import Defaults
    from edgespec.server.guard import Access
    from edgespec.server.running import Server, open_socket
    from edgespec.speculation.acceptance import draw_settings

    options = make_engine_options(values)
    seed = values["seed"]
    defaults = Defaults(
        make_sampling(values),
        values["accept"],
        seed,
        None if values["max_tokens"] == NO_LIMIT else values["max_tokens"],
        values["overflow"],
        values["allow_loops"],
    )
    defaults.limits()
    draw_settings(defaults.sampling, defaults.accept)
    keys = _keys(values)
    origins = tuple(values["allow_origin"])
    access = Access(values["host"], keys[0] if keys else None, origins, tuple(keys[1:]))
    limits = Limits(
        parallel=values["parallel"],
        queue=values["queue"],
        seconds=values["timeout"],
        body=values["max_body"] << 20,
        grace=values["grace"],
    )
    with (
        open_socket(values["host"], values["port"]) as listener,
        open_for_serving(values["model"], options, values["pooling"]) as engine,
    ):
        logging.basicConfig(level=logging.WARNING, format="edgespec: %(message)s")
        engine.model_name = values["alias"] or engine.model_name
        if values["chat_template"] is not None and not isinstance(engine, Embedder):
            engine.use_template(values["chat_template"].read_text(encoding="utf-8-sig"))
        service = Service(
            engine,
            defaults,
            access,
            limits,
            page=not (values["no_ui"] or isinstance(engine, Embedder)),
            recent=values["lookup_answers"],
            pooling=values["pooling"],
        )
        host, port = listener.getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        server = Server(
            make_app(service),
            service.admission,
            limits.grace,
            lambda: click.echo(f"Serving {engine.model_name} at {url}"),
        )
        server.run(sockets=[listener])
    return _INTERRUPTED if server.interrupted else 0


def _keys(values: dict[str, Any]) -> list[str]:
    """Return the keys that clients may send; none if they need none."""
    if values["api_key_file"] is None:
        return [] if values["api_key"] is None else [values["api_key"]]
    with Path(values["api_key_file"]).open("rb") as file:
        lines = file.read(_MOST_KEYS).decode("utf-8", "replace").splitlines()
    return [line.strip() for line in lines if line.strip()] or [""]
