"""A cache folder for one benchmark, so that the user's measurements stay as they are."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["private_cache"]

_SHARED = ("kernels", "models")


@contextmanager
def private_cache(*, measurements: bool) -> Iterator[Path]:
    """Use a temporary cache folder in place of the user's.

    Models and compiled kernels are shared with the user's folder.

    Args:
        measurements: start with a copy of what was measured and learned; else with nothing.
    """
    from edgespec.files import cache_root

    root, before = cache_root(), os.environ.get("EDGESPEC_CACHE")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for shared in _SHARED:
            (root / shared).mkdir(parents=True, exist_ok=True)
            (folder / shared).symlink_to((root / shared).resolve())
        if measurements and (root / "measurements").is_dir():
            shutil.copytree(root / "measurements", folder / "measurements")
        os.environ["EDGESPEC_CACHE"] = name
        try:
            yield folder
        finally:
            os.environ.pop("EDGESPEC_CACHE")
            if before is not None:
                os.environ["EDGESPEC_CACHE"] = before
