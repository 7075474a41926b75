"""Drafters that are wrong often: a cache that is never rolled back proves nothing."""

from __future__ import annotations

import numpy as np

from edgespec._types import Int32Array
from edgespec.control.budget import DraftBudget
from edgespec.drafters import Drafter, Learned, NoDrafter, Proposal
from edgespec.speculation.settings import DrawSettings

__all__ = ["Heated", "Scripted"]


_TEMPERATURE = 1.3
_WRONG_EVERY = 3


class Scripted(NoDrafter):
    """A drafter that proposes a known text, with mistakes at a third of its positions.

    Args:
        script: int32, the whole text, prompt included.
        n_vocab: of the target.
        seed: which positions are wrong.
    """

    name = "scripted"
    speculates = True

    def __init__(self, script: Int32Array, n_vocab: int, seed: int = 0) -> None:
        wrong = np.random.default_rng(seed).integers(0, _WRONG_EVERY, len(script)) == 0
        self._script = np.where(wrong, (script + 1) % n_vocab, script).astype(np.int32)

    def propose(self, history: Int32Array, length: int, budget: DraftBudget) -> Proposal:
        """Propose the next tokens of the script, as far as it goes."""
        tokens = self._script[length : length + budget.limit]
        history[length : length + len(tokens)] = tokens
        return Proposal(len(tokens))


class Heated:
    """A drafter that draws at a higher temperature than the target.

    Even a perfect draft is then rejected at times; the rejection rule is exact for any q.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.name, self.speculates = drafter.name, drafter.speculates

    def begin(self, settings: DrawSettings) -> None:
        """Pass on the settings with another temperature."""
        hot = settings.arguments._replace(temperature=_TEMPERATURE)
        self._drafter.begin(settings._replace(arguments=hot))

    def propose(self, history: Int32Array, length: int, budget: DraftBudget) -> Proposal:
        """Return what the drafter proposes."""
        return self._drafter.propose(history, length, budget)

    def learn(self, accepted: int, judged: int) -> None:
        """Pass on."""
        self._drafter.learn(accepted, judged)

    def learned(self) -> Learned:
        """What the drafter knows."""
        return self._drafter.learned()

    def commit(self, history: Int32Array, length: int) -> None:
        """Pass on."""
        self._drafter.commit(history, length)

    def rewind(self, length: int) -> None:
        """Pass on."""
        self._drafter.rewind(length)

    def cancel(self) -> None:
        """Pass on."""
        self._drafter.cancel()

    def resume(self) -> None:
        """Pass on."""
        self._drafter.resume()

    def close(self) -> None:
        """Pass on."""
        self._drafter.close()
