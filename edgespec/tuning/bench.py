"""Look at one setting after the other: a prompt, single tokens, small batches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.backend import Context, ContextOptions, Model, ModelOptions
from edgespec.errors import BackendError
from edgespec.tuning.kernels import fast_options
from edgespec.tuning.measure import compare, measuring_text, stand_at
from edgespec.tuning.search import BATCH, Trial, Visit
from edgespec.tuning.setting import Setting

__all__ = ["Bench"]

_PROMPT, _SHORT_PROMPT = 256, 128
_PROBE = 32
_SLOW_PROMPT_S = 1.5
_SINGLES, _FEW_SINGLES = 8, BATCH + 1
_BATCHES = 4
_LARGEST = 33


class Bench:
    """One model file; its weights are loaded once for each way of multiplying them.

    Args:
        path: the file.
        stack: closes what is opened.
        note: told what is being done.

    `rollable` says whether the cache can be rolled back; without that no batches are of use.

    Raises: what `Model` raises.
    """

    def __init__(self, path: Path, stack: ExitStack, note: Callable[[str], None]) -> None:
        self._path, self._stack, self._note = path, stack, note
        self._models: dict[tuple[str, bool], Model] = {}
        self._prompt, self._singles = _PROMPT, _SINGLES
        self.rollable = True

    def model(self, setting: Setting) -> Model:
        """Its weights, loaded on first use."""
        way = setting.kernels, setting.repack
        if way not in self._models:
            self._note(f"loading weights{_words(setting)}")
            options = ModelOptions(repack=setting.repack)
            if setting.kernels == "edgespec":
                options = fast_options(self._path, setting.threads)
            self._models[way] = self._stack.enter_context(Model(self._path, options))
        return self._models[way]

    def open(self, setting: Setting, length: int = 0) -> Context:
        """A context opened this way, for `length` tokens or as many as a visit needs."""
        model = self.model(setting)
        options = ContextOptions(
            length=min(length or _PROMPT + _LARGEST, model.context_length),
            threads=setting.threads,
            flash_attention=setting.flash_attention,
            kv_type=setting.kv_type,
            outputs=_LARGEST,
            checkpoints=1,
        )
        return Context(model, options)

    def probe(self, setting: Setting) -> None:
        """Read the weights from disk once; find out how long prompts may be, and `rollable`."""
        with self.open(setting) as context:
            text = measuring_text(context, _PROBE)[:_PROBE]
            context.prefill(text)
            context.clear()
            started = perf_counter()
            context.prefill(text)
            if (perf_counter() - started) / _PROBE * _PROMPT > _SLOW_PROMPT_S:
                self._prompt, self._singles = _SHORT_PROMPT, _FEW_SINGLES
            self.rollable = context.can_truncate()

    def visit(self, trial: Trial) -> None:
        """One look at a setting; what llama.cpp refuses is noted in the trial."""
        setting = trial.setting
        flash = "on" if setting.flash_attention else "off"
        words = _words(setting)
        words += "" if setting.kv_type == "f16" else f", {setting.kv_type} cache"
        self._note(f"{setting.threads} threads, flash attention {flash}{words}")
        try:
            with self.open(setting) as context:
                trial.visits.append(self._look(context, trial))
        except BackendError as error:
            trial.failed = str(error)

    def _look(self, context: Context, trial: Trial) -> Visit:
        prompt = min(self._prompt, context.capacity - self._singles)
        text = measuring_text(context, prompt + self._singles)
        context.evaluate(text[:1], 1)  # buffers of the first call
        context.clear()
        started = perf_counter()
        context.prefill(text[:prompt])
        prefill_s = (perf_counter() - started) / prompt
        alone = np.empty((self._singles, context.model.vocabulary.size), np.float32)
        singles = []
        for i in range(self._singles):
            started = perf_counter()
            logits = context.evaluate(text[prompt + i : prompt + i + 1], 1)
            singles.append(perf_counter() - started)
            alone[i] = logits[0]
        if not self.rollable:
            return Visit(prefill_s, min(singles), BATCH * min(singles))
        batches = []
        for _ in range(_BATCHES):
            stand_at(context, text, prompt)
            started = perf_counter()
            context.evaluate(text[prompt : prompt + BATCH], BATCH)
            batches.append(perf_counter() - started)
        if not trial.compared:
            trial.compared, trial.depth = self._singles, prompt
            trial.identical = _identical(context, text, prompt, alone)
        return Visit(prefill_s, min(singles), min(batches))


def _words(setting: Setting) -> str:
    if setting.kernels == "edgespec":
        return ", edgespec's kernels"
    return "" if setting.repack else ", not repacked"


def _identical(context: Context, text: Int32Array, prompt: int, alone: Float32Array) -> int:
    """The largest batch up to which all have the rows of single tokens, bit for bit."""
    for n in range(2, len(alone) + 1):
        stand_at(context, text, prompt)
        if compare(n, context.evaluate(text[prompt : prompt + n], n), alone).logit > 0.0:
            return n - 1
    return len(alone)
