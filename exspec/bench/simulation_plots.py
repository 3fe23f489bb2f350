"""Charts as a picture in a file. The only place that knows matplotlib, which is an extra."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exspec.core.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from exspec.bench.simulation import Chart

SUFFIXES = (".png", ".svg")
PANELS_PER_ROW = 2
PANEL_INCHES = (5.5, 4.0)
DOTS_PER_INCH = 120


def check_plot(path: str) -> None:
    """Say at once, not after minutes, that a picture cannot be made.

    Raises:
        InvalidRequestError: another format, or matplotlib is not installed.
    """
    if Path(path).suffix not in SUFFIXES:
        raise InvalidRequestError(
            f"--plot takes a file that ends with {' or '.join(SUFFIXES)}, got {path!r}",
            field="plot",
        )
    _figure_class()


def draw(charts: Sequence[Chart], path: str) -> None:
    """One panel per chart.

    Raises:
        InvalidRequestError: the file cannot be written, or matplotlib is not installed.
    """
    num_columns = min(PANELS_PER_ROW, len(charts))
    num_rows = math.ceil(len(charts) / num_columns)
    size = (PANEL_INCHES[0] * num_columns, PANEL_INCHES[1] * num_rows)
    figure = _figure_class()(figsize=size, layout="constrained")
    for index, chart in enumerate(charts, start=1):
        _draw_chart(figure.add_subplot(num_rows, num_columns, index), chart)
    try:
        figure.savefig(path, dpi=DOTS_PER_INCH)
    except OSError as error:
        raise InvalidRequestError(
            f"{path} cannot be written: {error.strerror}", field="plot"
        ) from error


def _draw_chart(axes: Any, chart: Chart) -> None:  # noqa: ANN401
    colour = None
    for line in chart.lines:
        if line.is_reference:
            axes.plot(line.xs, line.ys, linestyle="--", color=colour, label=line.name)
            continue
        (drawn,) = axes.plot(line.xs, line.ys, marker="o", label=line.name)
        colour = drawn.get_color()
    axes.set_title(chart.title)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    if any(line.name for line in chart.lines):
        axes.legend(fontsize="small")


def _figure_class() -> Any:  # noqa: ANN401
    """matplotlib's figure with the Agg canvas: no window system is asked for."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib.figure import Figure
    except ImportError:
        raise InvalidRequestError(
            "--plot needs matplotlib: pip install 'exspec[plot]'", field="plot"
        ) from None
    return Figure
