"""`write_report`: from results to one file."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cmdpkit import __version__
from cmdpkit.checks import check_nonnegative
from cmdpkit.files import PathLike, check_folder, write_whole
from cmdpkit.insight.report.page import check_plotly, code, paragraphs, terms
from cmdpkit.insight.report.solved import solved_page
from cmdpkit.insight.report.trained import trained_page
from cmdpkit.run.result import Result, TrainingResult

SECONDS = 30.0
"""What curves and diagnoses may take, unless told otherwise."""


def write_report(
    results: Any,
    path: PathLike,
    *,
    title: str | None = None,
    subtitle: str = "",
    certificates: Any = None,
    axes: Any = None,
    frontiers: bool = True,
    time_limit: float = SECONDS,
    command: str | None = None,
    seed: int | None = None,
) -> None:
    """Write a report to one HTML file that works offline: for a result of `solve`, or for one or more of `train`.

    Args:
        results: a result of `solve`; or a result of `train`, or a list of them, whose curves are drawn together (runs
            of the same method are taken for seeds of one experiment).
        path: the file to write, whole or not at all.
        title, subtitle: the heading.
        certificates: for results of `train`: what `certify_on_episodes` found on fresh episodes, one per result.
        axes: for a map of the policy where states have two coordinates: their names with the number of values of each,
            as in {"queue 1": 16, "queue 2": 16}, the second changing faster; or (names, coordinates (S, 2)). Not
            needed where the labels of the states are pairs of whole numbers.
        frontiers: whether to draw the optimum as a function of each limit, which takes a search per limit.
        time_limit: seconds that these curves, and the diagnosis of limits that cannot be met, may take all together.
        command: how the result was made, to be shown. By default the call in Python.
        seed: the seed of the run, to be shown.

    Example:
        >>> import cmdpkit as ck, tempfile, pathlib
        >>> result = ck.solve(ck.problems.paper())
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "report.html"
        >>> result.report(path)
        >>> 1e6 < path.stat().st_size < 5e6
        True
    """
    check_plotly()
    check_folder(path)
    if Path(path).suffix.lower() not in ("", ".html", ".htm"):
        raise ValueError(f"a report is an HTML file, and {path} is not named like one; a browser prints it to PDF")
    check_nonnegative(time_limit, "time_limit")
    found: list[Any] = [results] if isinstance(results, (Result, TrainingResult)) else _listed(results)
    proofs = _proofs(certificates, found)
    if isinstance(found[0], Result):
        _one_solved(found)
        result = found[0]
        about = how_to_reproduce(command or _call(result), seed, _drawn(result))
        page = solved_page(result, title or _title(result), subtitle, axes, time_limit, about, frontiers)
    else:
        about = how_to_reproduce(command, seed, "The same seed gives the same run, bit for bit, on the same machine.")
        page = trained_page(found, proofs, title or "Training runs", subtitle, about)
    content = page.render()
    write_whole(path, lambda file: file.write(content))


def _listed(results: Any) -> list[Any]:
    if not isinstance(results, Iterable) or isinstance(results, (str, bytes)):
        raise TypeError(f"a report is about results of solve or train, not {type(results).__name__}")
    found = list(results)
    strange = [type(x).__name__ for x in found if not isinstance(x, (Result, TrainingResult))]
    if strange or not found:
        raise TypeError(f"a report needs results of solve or train, not {strange[0] if strange else 'an empty list'}")
    return found


def _one_solved(found: Sequence[Any]) -> None:
    if len(found) > 1:
        raise ValueError("a report is about one result of solve; several can be compared with cmdpkit.compare")


def _proofs(certificates: Any, found: Sequence[Any]) -> list[Any]:
    if certificates is None:
        return [None] * len(found)
    if isinstance(found[0], Result):
        raise ValueError("certificates are for results of train; a result of solve has its own")
    proofs = [certificates] if len(found) == 1 and not isinstance(certificates, (list, tuple)) else list(certificates)
    if len(proofs) != len(found):
        raise ValueError(f"there are {len(proofs)} certificates for {len(found)} results; give one per result")
    return proofs


def _title(result: Result) -> str:
    model = result.model
    return f"{model.states:,} states, {model.actions:,} actions, {model.num_constraints} limits"


def _call(result: Result) -> str:
    return f"import cmdpkit as ck\n\nresult = ck.solve(model, {result.method!r})\nresult.report('report.html')"


def _drawn(result: Result) -> str:
    if result.samples is None:
        return "No random numbers were drawn: the same call gives the same numbers."
    return "The same seed gives the same run, bit for bit."


def how_to_reproduce(command: str | None, seed: int | None, note: str) -> list[str]:
    """Command, versions and seed, as HTML."""
    facts = [("cmdpkit", __version__), ("Python", platform.python_version())]
    facts += [(name, found) for name in ("numpy", "scipy", "numba") if (found := _version(name))]
    if "torch" in sys.modules:
        facts += [("torch", found) for found in [_version("torch")] if found]
    facts.append(("machine", f"{platform.system()}, {platform.machine()}"))
    if seed is not None:
        facts.append(("seed", str(seed)))
    return [*([code(command)] if command else []), paragraphs([note]), terms(facts)]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
