"""What drafters with a model of their own have in common: its context is stopped and closed."""

from __future__ import annotations

from edgespec.backend import Context
from edgespec.drafters.pace import Pace

__all__ = ["ContextDrafter"]


class ContextDrafter:
    """Base of drafters that evaluate tokens in a context, which they close with its model."""

    context: Context
    pace: Pace

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
