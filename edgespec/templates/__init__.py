"""Chat templates: hostile Jinja rendered in a sandbox with limits."""

from edgespec.templates.template import ChatTemplate

__all__ = ["ChatTemplate"]
