"""Where edgespec keeps what it can make or fetch again: models, compiled kernels, measurements."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path

__all__ = ["cache_root"]


def cache_root() -> Path:
    """The folder that ``EDGESPEC_CACHE`` names, or the platform's cache folder."""
    named = os.environ.get("EDGESPEC_CACHE")
    return Path(named).expanduser() if named else user_cache_path("edgespec")
