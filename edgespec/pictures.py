"""Draw PNG files that all look alike, each written in one step."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.errors import UsageError
from edgespec.extras import require_extra
from edgespec.files import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["BLUE", "GREEN", "ORANGE", "PURPLE", "check_picture_path", "write_panels"]

# Okabe and Ito's colours, which do not depend on telling red from green.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"


def check_picture_path(path: Path) -> None:
    """Check before any work that a picture can be written there.

    Raises:
        UsageError: another format's name, or no such folder.
        MissingExtraError: nothing is installed that could draw.
    """
    require_extra("plot", "--png")
    if path.suffix.lower() != ".png":
        raise UsageError(f"{path}: pictures are PNG, give a name that ends in .png")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}")
    if path.is_dir():
        raise UsageError(f"{path} is a folder: give the name of a file")


def write_panels(path: Path, *panels: Callable[[Axes], None]) -> None:
    """Draw panels below each other; the file appears, or is replaced, in one step."""
    replace_file(path, _draw(panels))


def _draw(panels: tuple[Callable[[Axes], None], ...]) -> bytes:
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with mpl.rc_context():
        mpl.rcdefaults()  # the user's own settings may ask for LaTeX, or fonts that are not there
        layout = ConstrainedLayoutEngine(h_pad=0.12, w_pad=0.12)
        figure = Figure(figsize=(10, 3.9 * len(panels)), dpi=120, layout=layout)
        FigureCanvasAgg(figure)
        axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for each, draw in zip(axes, panels, strict=True):
            draw(each)
            each.spines[["top", "right"]].set_visible(False)
            each.set_axisbelow(True)
            each.grid(axis="y", color="0.9")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png")
    return buffer.getvalue()
