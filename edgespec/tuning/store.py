"""Where measurements are kept: one small JSON file for each machine, build, model and settings."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import platform
from pathlib import Path
from typing import Any

from edgespec.backend import capabilities
from edgespec.files import cache_root, replace_file

__all__ = [
    "build_facts",
    "forget_measurements",
    "load_measurement",
    "measurement_key",
    "store_measurement",
    "stored_choices",
    "stored_measurements",
]

_log = logging.getLogger("edgespec.tuning")

_VERSION = 2
_SAMPLE = 1 << 20


def build_facts() -> list[Any]:
    """What measurements depend on beside the model: versions, processor, build."""
    build = capabilities()
    processor = [platform.machine(), _processor()]
    return [_VERSION, *processor, build.binding, sorted(build.features)]


def measurement_key(model: Path, settings: dict[str, Any]) -> str:
    """Return a name that changes with processor, build, model file and settings.

    The file's beginning, end and size stand for its content: hashing gigabytes at every start
    would take longer than what it saves.
    """
    digest = hashlib.sha256()
    facts = [*build_facts(), model.stat().st_size, sorted(settings.items())]
    digest.update(json.dumps(facts).encode())
    with model.open("rb") as file:
        digest.update(file.read(_SAMPLE))
        file.seek(max(0, model.stat().st_size - _SAMPLE))
        digest.update(file.read(_SAMPLE))
    return digest.hexdigest()[:32]


def load_measurement(key: str) -> dict[str, Any] | None:
    """Return what was stored under this key; None if there is nothing readable."""
    try:
        data = json.loads(_path(key).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def store_measurement(key: str, data: dict[str, Any]) -> None:
    """Keep a measurement; a folder that cannot be written costs only measuring again."""
    path = _path(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, (json.dumps(data, indent=2) + "\n").encode())
    except OSError as error:
        _log.info("the measurement cannot be kept: %s", error)


def forget_measurements(pattern: str) -> None:
    """Remove what is stored under keys like this one, in which * stands for anything."""
    for path in _folder().glob(f"{pattern}.json"):
        with contextlib.suppress(OSError):
            path.unlink()


def stored_measurements(pattern: str) -> dict[str, dict[str, Any]]:
    """Return what is stored under keys like this one, in which * stands for anything."""
    keys = (path.stem for path in sorted(_folder().glob(f"{pattern}.json")))
    found = {key: load_measurement(key) for key in keys}
    return {key: data for key, data in found.items() if data is not None}


def stored_choices() -> list[dict[str, Any]]:
    """Return what was chosen for each model that was opened here."""
    return list(stored_measurements("choice-*").values())


def _folder() -> Path:
    return cache_root() / "measurements"


def _path(key: str) -> Path:
    return _folder() / f"{key}.json"


def _processor() -> str:
    """Return the processor's name, as far as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith(("model name", "CPU part", "Model")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()
