"""What drafters with a model of their own have in common: its context is stopped and closed."""

from __future__ import annotations

from edgespec.backend import Context
from edgespec.control.stopping import DraftStopping
from edgespec.errors import NumericalError

__all__ = ["ContextDrafter"]


class ContextDrafter:
    """Base of drafters that evaluate tokens in a context, which they close with its model."""

    context: Context
    stopping: DraftStopping

    def broken(self) -> NumericalError:
        """The error to raise when the draft's logits are NaN or +inf."""
        return NumericalError(
            f"the draft {self.context.model.path.name} produced NaN or infinite logits: "
            "the file may be damaged; use another --draft"
        )

    def cancel(self) -> None:
        """Stop the draft's running evaluation."""
        self.context.cancel()

    def resume(self) -> None:
        """Allow evaluations again."""
        self.context.resume()

    def close(self) -> None:
        """Close the draft's context and its model."""
        self.context.close()
        self.context.model.close()
