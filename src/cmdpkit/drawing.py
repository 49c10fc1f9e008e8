"""The style of all printed figures: colours, lines and markers that stay apart in grey and for colour-blind readers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cmdpkit.files import PathLike, check_folder, write_whole

FORMATS = ("png", "pdf", "svg")
MISSING = "plots need matplotlib: pip install 'cmdpkit[plot]'"
FADED = 0.18
"""Opacity of bands."""

_SETTINGS: dict[Any, Any] = {
    "pdf.fonttype": 42,  # fonts that can be edited and searched
    "svg.fonttype": "none",
    "svg.hashsalt": "cmdpkit",  # the same file for the same figure
}


class Style(NamedTuple):
    """How a curve is drawn. Each part alone tells the curves of a figure apart."""

    colour: str
    line: Any = "-"
    marker: str = "o"


BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"  # the palette of Okabe and Ito
ORANGE, SKY, BLACK, GREY = "#E69F00", "#56B4E9", "#000000", "#7F7F7F"
BROWN = "#8C510A"

STYLES = (
    Style(BLUE, "-", "o"),
    Style(VERMILLION, "--", "s"),
    Style(GREEN, "-.", "^"),
    Style(PURPLE, ":", "D"),
    Style(ORANGE, (0, (5, 1, 1, 1, 1, 1)), "v"),
    Style(SKY, (0, (8, 2)), "P"),
    Style(GREY, (0, (3, 1, 1, 1)), "X"),
    Style(BLACK, (0, (1, 1)), "*"),
    Style(BROWN, (0, (6, 1, 1, 1, 1, 1, 1, 1)), "<"),
)

METHODS = {"pmd-pd": STYLES[0], "npg-pd": STYLES[1], "crpo": STYLES[2], "pmd-pd-zero": STYLES[3]}
"""The same style for the same method in every figure."""

BOUND = Style(BLACK, "--", "")
"""Bounds of theorems, and other lines that were not measured."""


def styles(names: Sequence[str]) -> dict[str, Style]:
    """A style for each curve of a figure; those of the paper's methods are always the same, also with options."""
    own: dict[str, Style] = {}
    for name in sorted(names, key=lambda name: name not in METHODS):  # the plain name first
        style = METHODS.get(name.partition("(")[0].strip())
        if style is not None and style not in own.values():
            own[name] = style
    free = [style for style in STYLES if style not in own.values()] or list(STYLES)
    others = [name for name in dict.fromkeys(names) if name not in own]
    return own | {name: free[i % len(free)] for i, name in enumerate(others)}


def figure(columns: int = 1, rows: int = 1, size: tuple[float, float] = (5.0, 3.9), **grid: Any) -> tuple[Any, Any]:
    """A figure and its (rows, columns) axes, of this size each, in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(MISSING) from error
    drawing = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    axes = drawing.subplots(rows, columns, squeeze=False, **grid)
    for axis in axes.flat:
        axis.grid(alpha=0.25)
    return drawing, axes


def curve(axis: Any, x: Any, y: Any, style: Style, label: str | None = None, **changes: Any) -> Any:
    """A line with about eight markers, at other places for each style: where curves meet, none hides the others."""
    settings = {"color": style.colour, "ls": style.line, "marker": style.marker, "ms": 4.5, "lw": 1.5, "label": label}
    settings["markevery"] = _marked(np.asarray(x, dtype=float), axis.get_xscale() == "log", style)
    return axis.plot(x, y, **{**settings, **changes})[0]


def _marked(x: Any, logarithmic: bool, style: Style, count: int = 8) -> list[int]:
    """Rows evenly spaced along the axis."""
    if len(x) <= count + 4:
        return list(range(len(x)))
    shift = STYLES.index(style) / len(STYLES) if style in STYLES else 0.0
    along = np.log(x) if logarithmic and x[0] > 0.0 else x
    places = along[0] + (np.arange(count) + shift) / count * (along[-1] - along[0])
    return sorted({int(row) for row in np.searchsorted(along, places).clip(0, len(x) - 1)})


def band(
    axis: Any, x: Any, low: Any, high: Any, style: Style, least: float = -np.inf, most: float = np.inf, **changes: Any
) -> None:
    """Shade the values between two curves, without those that are not possible."""
    edges = np.clip(np.asarray(low, dtype=float), least, most), np.clip(np.asarray(high, dtype=float), least, most)
    axis.fill_between(x, *edges, **{"color": style.colour, "alpha": FADED, "lw": 0.0, **changes})


def clip(axis: Any, low: float, high: float) -> None:
    """Show the values from `low` to `high`, and say so on the figure where something lies outside."""
    values = [
        np.asarray(line.get_ydata(), dtype=float) for line in axis.lines if line.get_transform() == axis.transData
    ]
    values += [path.vertices[:, 1] for shaded in axis.collections for path in shaded.get_paths()]
    known = np.concatenate([v[np.isfinite(v)] for v in values]) if values else np.zeros(0)
    axis.set_ylim(low, high)
    parts = [f"below {low:g}"] * bool((known < low).any()) + [f"above {high:g}"] * bool((known > high).any())
    if parts:
        note(axis, f"clipped: curves go on {' and '.join(parts)}")


def note(axis: Any, text: str) -> None:
    """A remark in the upper right corner of the axes."""
    place = {"xycoords": "axes fraction", "ha": "right", "va": "top", "fontsize": 7.5, "style": "italic"}
    axis.annotate(text, (0.985, 0.985), bbox={"fc": "white", "ec": "none", "alpha": 0.7, "pad": 1.0}, **place)


def paths(path: PathLike, formats: Sequence[str] = ()) -> list[Path]:
    """The files of a figure: `path`, and the same with each of the other formats in place of its ending."""
    target = Path(path)
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise ValueError(f"unknown format {unknown[0]!r} of a figure; choose from {', '.join(FORMATS)}")
    own = target.suffix[1:].lower()
    if own in FORMATS:
        return [target.with_suffix(f".{name}") if name != own else target for name in dict.fromkeys([own, *formats])]
    if not formats:
        raise ValueError(f"cannot draw to {target}: its name must end in .{', .'.join(FORMATS)}, or give the formats")
    return [target.with_name(f"{target.name}.{name}") for name in dict.fromkeys(formats)]


def check_paths(path: PathLike, formats: Sequence[str] = ()) -> None:
    """Check before a long run that its figure can be written."""
    for target in paths(path, formats):
        check_folder(target)


def save(drawing: Any, path: PathLike, formats: Sequence[str] = (), dpi: int = 110) -> None:
    """Write a figure to its files; the same figure gives the same bytes."""
    import matplotlib

    date = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
    for target in paths(path, formats):
        kind = target.suffix[1:].lower()
        with matplotlib.rc_context(_SETTINGS):
            write_whole(
                target,
                lambda file, kind=kind: drawing.savefig(file, dpi=dpi, format=kind, metadata=date[kind]),  # type: ignore[misc]
            )


def parsed_formats(text: str | None) -> tuple[str, ...]:
    """Formats as the command line takes them, separated by commas."""
    names = tuple(part.strip().lower().lstrip(".") for part in (text or "").split(",") if part.strip())
    paths("figure.png", names)
    return names
