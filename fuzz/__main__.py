"""python -m fuzz N: examine N models, one line per finding, and a table of rates."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections import Counter, defaultdict

from fuzz.calls import METHODS
from fuzz.judge import HARMLESS, KINDS
from fuzz.pool import Report, run


def main() -> int:
    arguments = parse()
    indices = arguments.only or range(arguments.first, arguments.first + arguments.models)
    start, counts, calls = time.perf_counter(), Counter[tuple[str, str]](), Counter[str]()
    seconds: dict[str, list[float]] = defaultdict(list)
    families: dict[str, Counter[str]] = defaultdict(Counter)
    examined = set()
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends the run, with the table of what was done
        for report in run(arguments.seed, indices, arguments.methods, arguments.jobs):
            examined.add(report.index)
            calls[report.method] += 1
            seconds[report.method].append(report.seconds)
            show(report, arguments)
            for kind in {finding.kind for finding in report.findings}:
                counts[report.method, kind] += 1
                families[report.family][kind] += 1
    summary(counts, calls, seconds, families)
    print(f"{len(examined)} models of seed {arguments.seed} in {time.perf_counter() - start:.0f} s")
    return int(any(kind not in HARMLESS for _, kind in counts))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("models", nargs="?", type=int, default=1000, help="how many models to examine")
    parser.add_argument("--seed", type=int, default=0, help="of the models")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--first", type=int, default=0, help="index of the first model")
    parser.add_argument("--only", type=int, nargs="+", help="examine the models with these indices alone")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS), help=",".join(METHODS))
    parser.add_argument("--quiet", action="store_true", help="do not list what was merely left unproved")
    arguments = parser.parse_args()
    unknown = set(arguments.methods) - set(METHODS)
    if unknown:
        parser.error(f"unknown methods {', '.join(sorted(unknown))}; choose from {', '.join(METHODS)}")
    return arguments


def show(report: Report, arguments: argparse.Namespace) -> None:
    """One line per finding; with --only also what went well."""
    head = f"{report.index:6d}  {report.family:14s} {report.method:8s}"
    for kind, detail in report.findings:
        if kind not in HARMLESS or not arguments.quiet:
            print(f"{head} {kind:13s} {detail}", flush=True)
    if arguments.only and not report.findings:
        print(f"{head} fine, {report.seconds:.2f} s", flush=True)


def summary(
    counts: Counter[tuple[str, str]],
    calls: Counter[str],
    seconds: dict[str, list[float]],
    families: dict[str, Counter[str]],
) -> None:
    """Calls with a finding of each kind, per method and per family, and the times."""
    print(f"\n{'method':14s} {'calls':>7s} " + " ".join(f"{kind:>13s}" for kind in KINDS) + "   mean s    max s")
    for method, total in calls.items():
        cells = (f"{counts[method, kind]:6d} {counts[method, kind] / total:6.2%}" for kind in KINDS)
        times = seconds[method]
        print(f"{method:14s} {total:7d} {' '.join(cells)} {sum(times) / len(times):8.3f} {max(times):8.2f}")
    if families:
        print(f"\n{'family':22s} " + " ".join(f"{kind:>13s}" for kind in KINDS))
    for family, found in sorted(families.items()):
        print(f"{family:22s} " + " ".join(f"{found[kind]:13d}" for kind in KINDS))


if __name__ == "__main__":
    sys.exit(main())
