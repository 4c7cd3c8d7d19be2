"""Pictures by matplotlib, as files and as bytes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any


def without_display() -> None:
    """Have matplotlib draw without a display: none is needed, nor looked for."""
    import matplotlib

    matplotlib.use("Agg")


def saved(figure: Any, path: Path, dpi: int = 130) -> Path:
    """The path of a picture, written there in the format of its ending; the figure is closed."""
    import matplotlib.pyplot as plt

    figure.savefig(path, dpi=dpi)
    plt.close(figure)
    return path


def png(figure: Any, dpi: int = 130) -> bytes:
    """A figure as a PNG; it is closed."""
    import matplotlib.pyplot as plt

    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=dpi, format="png")
    plt.close(figure)
    return buffer.getvalue()
