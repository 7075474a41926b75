"""Try a file that was never seen in a process of its own: what llama.cpp asserts on ends that one.

The header's check knows much of it, and this finds the rest: the file is loaded, its tokenizer and
a few tokens are tried, within limits of time and memory. Once for each file and build.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import llama_cpp
import numpy as np

from edgespec.errors import EdgespecError, ModelFileError
from edgespec.files import cache_root, replace_file
from edgespec.gguf.header import GGUFHeader

__all__ = ["require_sound"]

_LEAST_S, _BYTES_A_SECOND = 20.0, 20e6
_SPARE_BYTES = 3 << 30
_CONTEXT = 64
_FAILED = 3  # as llama.cpp says itself
_PROGRAM = "import sys; from edgespec.backend.probe import use; sys.exit(use(*sys.argv[1:]))"
_TEXTS = (
    "Hello, world! It's 12:30.\n\n\tfor i in range(10):   pass",
    "naïve Straße, 你好, मानक, 🐱‍👤 \u0000\ufffd\u200d",
    "<|im_start|><s></s>[INST]<0x0A>",
    " ",
    "",
)


def require_sound(header: GGUFHeader, *, mtp: bool = False) -> None:
    """Return if the file can be used, or if that is known from an earlier time.

    Errors that llama.cpp reports are no matter here: loading it raises them again.

    Args:
        mtp: try its MTP layers.

    Raises:
        ModelFileError: trying it ended the process, or took too long; or its MTP layers failed.
    """
    if not sys.executable or getattr(sys, "frozen", False):
        return  # there is no interpreter to start
    tried = f"{header.facts_sha256} {llama_cpp.__version__}{' mtp' if mtp else ''}"
    known = sha256(tried.encode()).hexdigest()
    mark = cache_root() / "probed" / known[:32]
    if mark.exists():
        return
    limit = _LEAST_S + header.size_bytes / _BYTES_A_SECOND
    status, said = _try(header, limit, mtp=mtp)
    if status is None:
        raise ModelFileError(_complaint(header.path, f"was not done in {limit:.0f} seconds", said))
    if status < 0 or status > _FAILED:  # Windows has large ones for what is a signal elsewhere
        raise ModelFileError(_complaint(header.path, f"ended the process ({_name(status)})", said))
    if status == _FAILED and mtp:
        raise ModelFileError(f"the MTP layers of {header.path} cannot be used: use another --draft")
    if status == 0:
        with suppress(OSError):
            mark.parent.mkdir(parents=True, exist_ok=True)
            replace_file(mark, b"")


def _try(header: GGUFHeader, limit: float, *, mtp: bool) -> tuple[int | None, str]:
    """Return the child's exit status, None if it took too long, and what it wrote last."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(folder for folder in sys.path if folder),
        "GGML_NO_BACKTRACE": "1",
    }
    command = [sys.executable, "-c", _PROGRAM, str(header.path), str(header.size_bytes)]
    command += ["mtp"] if mtp else []
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, ""
    except OSError:
        return _FAILED, ""  # no process can be started
    return done.returncode, done.stderr[-2000:].decode("utf-8", "replace")


def _complaint(path: Path, what: str, said: str) -> str:
    reasons = re.findall(r"GGML_ASSERT.*|what\(\):.*", said)
    reason = "".join(c for c in reasons[-1] if c.isprintable())[:160] if reasons else ""
    return (
        f"{path} cannot be used: trying it {what}{f', {reason}' if reason else ''}: download it "
        "again or choose another file (--no-probe loads it nevertheless)"
    )


def _name(status: int) -> str:
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"status {status}"


# -- in the child ------------------------------------------------------------------------------


def _limit_memory(size: int) -> None:
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(ValueError, OSError):
        most = 2 * size + _SPARE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def use(path: str, size: str, part: str = "") -> int:
    """Load a file and use it, or its MTP layers, a little; return the status to end with."""
    _limit_memory(int(size))
    try:
        (_use_mtp if part == "mtp" else _use)(Path(path))
    except (EdgespecError, OSError, MemoryError):
        return _FAILED
    return 0


def _use(path: Path) -> None:
    from edgespec.backend.context import Context, ContextOptions
    from edgespec.backend.model import Model, ModelOptions
    from edgespec.backend.parallel import EmbeddingContext

    with Model(path, ModelOptions(repack=False, embedding=True)) as model:
        header, vocabulary = model.header, model.vocabulary
        if header.eagle is not None:
            return  # it needs its target's context
        tokens = np.arange(min(3, vocabulary.size), dtype=np.int32)
        if header.reduced is None:
            for text in _TEXTS:
                for special in (False, True):
                    found = vocabulary.tokenize(text, parse_special=special)
                    vocabulary.decode(found[found < vocabulary.size])
        if header.embeds:
            with EmbeddingContext(model, header.embedding_pooling, length=16, threads=2) as context:
                context.embed(tokens)
            return
        with Context(model, ContextOptions(_CONTEXT, threads=2, batch=16, outputs=2)) as context:
            context.evaluate(tokens, 1)
            context.truncate(len(tokens) - 1)
            context.evaluate(tokens[context.length :], 1)
            context.evaluate(tokens[:1], 1)


def _use_mtp(path: Path) -> None:
    from edgespec.backend.context import Context, ContextOptions
    from edgespec.backend.hidden_states import MTPContext, RecordedOutputs
    from edgespec.backend.model import Model, ModelOptions

    options = ContextOptions(_CONTEXT, threads=2, batch=16, outputs=2)
    with (
        Model(path, ModelOptions(repack=False, mtp=True)) as model,
        Context(model, options) as context,
        MTPContext(model, options) as layers,
    ):
        tokens = np.arange(min(3, model.vocabulary.size), dtype=np.int32)
        recorded = RecordedOutputs(context)
        context.evaluate(tokens, 1)
        _, state = layers.step(tokens[1:], recorded.rows[: len(tokens) - 1])
        layers.step(tokens[:1], state)
