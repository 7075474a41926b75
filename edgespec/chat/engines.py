"""The engine of a conversation, and how another one takes its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgespec.backend.lifetime import Closing
from edgespec.errors import InsufficientMemoryError
from edgespec.registry.manifest import load_manifest
from edgespec.runtime.engine import Engine
from edgespec.runtime.options import EngineOptions

__all__ = ["Engines"]

Open = Callable[[str | None, EngineOptions], Engine]

_KINDS = ("auto", "none", "ngram", "recycle")


class Engines(Closing):
    """Keeps one engine open.

    Args:
        open: opens an engine.
        model: as `Engine` takes it.
        options: of this engine and of those that follow it.

    Raises: what `open` raises.
    """

    def __init__(self, open: Open, model: str | None, options: EngineOptions) -> None:
        self._open = open
        self._model, self._options = model, options
        self.engine = open(model, options)

    def close(self) -> None:
        """Close the engine that is open."""
        self.engine.close()

    @property
    def model(self) -> str:
        """Return what opens this model again from any folder."""
        model = self._model
        named = model is None or model.startswith("hf:") or load_manifest().find(model) is not None
        return self.engine.model_name if named else str(self.engine.target.model.path.absolute())

    @property
    def draft(self) -> str:
        """Return what opens this draft again."""
        path = Path(self._options.draft).expanduser()
        return str(path.absolute()) if path.is_file() else self._options.draft

    @property
    def as_json(self) -> dict[str, Any]:
        """Return what to open to continue like this, for a stored conversation."""
        return {
            "name": self.engine.model_name,
            "file": self.model,
            "draft": self.draft,
            "context": self._options.context,
        }

    def change_model(self, model: str) -> None:
        """Open another model; a draft that was made for the old one is not kept.

        Raises: what opening it raises; the engine is then as before, if memory allows for that.
        """
        draft = self._options.draft
        kept = draft if draft in _KINDS else "auto"
        self._change(model, replace(self._options, draft=kept))

    def change_draft(self, draft: str) -> None:
        """Open the same model with another draft.

        Raises: as `change_model`.
        """
        self._change(self._model, replace(self._options, draft=draft))

    def _change(self, model: str | None, options: EngineOptions) -> None:
        try:
            engine = self._opened(model, options)
        except InsufficientMemoryError:
            self._change_in_place(model, options)
            return
        self.engine.close()
        self.engine, self._model, self._options = engine, model, options

    def _change_in_place(self, model: str | None, options: EngineOptions) -> None:
        """Close the old engine first, because both do not fit into memory."""
        self.engine.close()
        try:
            self.engine = self._opened(model, options)
        except BaseException:
            self.engine = self._open(self._model, self._options)
            raise
        self._model, self._options = model, options

    def _opened(self, model: str | None, options: EngineOptions) -> Engine:
        """Open an engine, and check that it has a chat template."""
        engine = self._open(model, options)
        try:
            _ = engine.template
        except BaseException:
            engine.close()
            raise
        return engine
