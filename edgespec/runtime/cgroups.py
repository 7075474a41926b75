"""The control groups this process is in: what a container may use of its machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["control_groups", "read_lines", "read_number"]

_MEMBERSHIP = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


def control_groups(
    controller: str, membership: Path = _MEMBERSHIP, root: Path = _ROOT
) -> Iterator[Path]:
    """Yield the folders of a controller's groups, from this process's own up to the mount.

    A container sees its own group as the mount's root, under a path of the host: so all levels
    are yielded, as each may have a limit, and not all have to be there.

    Args:
        controller: "cpu" or "memory".
        membership, root: of another file system, for tests.
    """
    for line in read_lines(membership):
        _, controllers, path = ([*line.split(":", 2), "", "", ""])[:3]
        if controllers == "":  # version 2
            yield from _levels(root, path)
        elif controller in controllers.split(","):
            yield from _levels(root / controller, path)


def _levels(mount: Path, path: str) -> Iterator[Path]:
    group = mount / path.strip().lstrip("/")
    for folder in (group, *group.parents):
        yield folder
        if folder == mount:
            return


def read_number(path: Path) -> int | None:
    """Return a file's only number; None for "max" or -1, and when there is no such file."""
    text = "".join(read_lines(path)).strip()
    return int(text) if text.isdecimal() else None


def read_lines(path: Path) -> list[str]:
    """Return a file's lines; none if it cannot be read."""
    try:
        return path.read_text("ascii", "replace").splitlines()
    except OSError:
        return []
