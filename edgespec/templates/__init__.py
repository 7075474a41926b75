"""Chat templates: Jinja programs that are not trusted, rendered in a sandbox with limits."""

from edgespec.templates.template import (
    ChatTemplate,
    check_names,
    control_texts,
    require_template,
)

__all__ = ["ChatTemplate", "check_names", "control_texts", "require_template"]
