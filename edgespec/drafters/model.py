"""A small model as drafter: samples from its own q and retains q at every prefix."""

from __future__ import annotations

import numpy as np

from edgespec.backend import Context
from edgespec.drafters.protocol import DETERMINISTIC, Float32Array, Int32Array, Proposal
from edgespec.drafters.running import ContextDrafter
from edgespec.errors import NumericalError
from edgespec.sampling.filters import Workspace, distribution, make_workspace
from edgespec.sampling.kernel import kernel
from edgespec.sampling.parameters import is_greedy
from edgespec.speculation.draws import draw_proposal
from edgespec.speculation.settings import DrawSettings, current_mu

__all__ = ["ModelDrafter", "draft_token"]


@kernel
def draft_token(
    logits: Float32Array,
    history: Int32Array,
    length: int,
    settings: DrawSettings,
    q: Float32Array,
    workspace: Workspace,
) -> int:
    """One token drawn from the draft's filtered softmax, which is left in the row q.

    Args:
        logits: float32 (n,), of the draft at the prefix ``history[:length]``.
        history, length: the tokens so far.
        settings: `DrawSettings`.
        q: float32 (n,), overwritten.
        workspace: `Workspace` of n entries.

    Returns:
        The token; -1 if the logits are broken or nothing is allowed.
    """
    position = length + settings.stream_offset
    count = distribution(
        logits,
        history,
        length,
        settings.arguments,
        q,
        workspace,
        settings.seed,
        position,
        current_mu(settings),
    )
    if count <= 0:
        return -1
    return draw_proposal(q, workspace.tokens, count, settings.rule, settings.seed, position)


class ModelDrafter(ContextDrafter):
    """Drafts with a GGUF model whose vocabulary is the target's.

    The draft's filters are the target's: what top-k and the like cut from p is not worth
    proposing. Its cache holds the committed prefix but for the last token or, after a cycle
    that accepted everything, the last two; they are evaluated together at the next `propose`.

    Args:
        context: an open context of the draft; closed with the drafter.
        target_vocabulary: number of the target's tokens, the width of q.
        shared_vocabulary: the first so many tokens mean the same in both; the rest is padding.
        budget: the most tokens one `propose` may be asked for.
    """

    name = "model"

    def __init__(
        self, context: Context, target_vocabulary: int, shared_vocabulary: int, budget: int
    ) -> None:
        self.context = context
        self._shared = shared_vocabulary
        self._q: Float32Array = np.zeros((budget, target_vocabulary), np.float32)
        self._workspace = make_workspace(shared_vocabulary, context.capacity + budget)
        self._settings: DrawSettings | None = None

    def begin(self, settings: DrawSettings) -> None:
        """Take over the target's filters, without biases on tokens that the draft lacks."""
        arguments = settings.arguments
        known = arguments.bias_tokens < self._shared
        self._settings = settings._replace(
            arguments=arguments._replace(
                bias_tokens=arguments.bias_tokens[known], bias_values=arguments.bias_values[known]
            )
        )

    def propose(self, history: Int32Array, length: int, budget: int) -> Proposal:
        """Draw up to `budget` tokens one after the other.

        Raises:
            CancelledError: `cancel` was called.
            NumericalError: the draft's logits are NaN or +inf.
        """
        assert self._settings is not None, "begin was not called"
        pending = history[self.context.length : length]
        if budget == 0 or pending.max(initial=0) >= self._shared:
            # A padding token of the target's has no meaning in the draft: no way past it.
            return Proposal(0)
        for i in range(budget):
            logits = self.context.evaluate(history[self.context.length : length + i], 1)
            token = draft_token(
                logits[0, : self._shared],
                history,
                length + i,
                self._settings,
                self._q[i, : self._shared],
                self._workspace,
            )
            if token < 0:
                raise NumericalError(
                    f"the draft {self.context.model.path.name} produced NaN or infinite logits: "
                    "the file may be damaged; use another --draft"
                )
            history[length + i] = token
        greedy = is_greedy(self._settings.arguments)
        return Proposal(budget, DETERMINISTIC if greedy else self._q)

    def commit(self, history: Int32Array, length: int) -> None:
        """Roll the cache back to the accepted prefix; the last token is not in it yet."""
        self.rewind(length - 1)

    def rewind(self, length: int) -> None:
        """Roll the cache back to `length` tokens, if it holds more."""
        self.context.truncate(length)
