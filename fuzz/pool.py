"""Workers: processes that examine one model after another, and are killed when a call takes too long."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from fuzz.judge import Finding

CALL_LIMIT, HANG_LIMIT, JUDGE_LIMIT = 30.0, 120.0, 300.0
"""Seconds for a call of the package: of computing, and by the clock (other work on the machine must not count), and
by the clock for the judgement of its answers."""

CONTEXT = multiprocessing.get_context("spawn")


class Report(NamedTuple):
    """What came of one method on one model."""

    index: int
    family: str
    method: str
    seconds: float
    findings: list[Finding]


def work(pipe: Connection, seed: int) -> None:
    """The worker's loop: announce every stage, so that the parent can time it."""
    from fuzz.calls import examine, judged
    from fuzz.judge import Judge
    from fuzz.models import family, model

    silent = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # LAPACK and HiGHS print what they do not like
        os.dup2(silent, stream)
    while (task := pipe.recv()) is not None:
        index, methods = task
        pipe.send(("judge", None))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                cmdp = model(seed, index)
            judge = Judge(cmdp)
        except Exception as error:
            finding = Finding("unjudged", f"the model cannot be built: {type(error).__name__}: {error}")
            pipe.send(("report", Report(index, family(index), "build", 0.0, [finding])))
            pipe.send(("done", None))
            continue
        for method in methods:
            pipe.send(("call", method))
            start = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, CALL_LIMIT)  # SIGPROF ends the process, wherever it is
            answers, findings = examine(cmdp, method, (seed, index))
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            seconds = time.process_time() - start
            pipe.send(("judge", method))
            findings += judged(judge, answers)
            pipe.send(("report", Report(index, family(index), method, seconds, findings)))
        pipe.send(("done", None))


class Worker:
    """A process with one model in hand."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.process: Any = None
        self.index = -1
        self.left: list[str] = []

    def give(self, index: int, methods: list[str]) -> None:
        if self.process is None:
            self.pipe, theirs = CONTEXT.Pipe()
            self.process = CONTEXT.Process(target=work, args=(theirs, self.seed), daemon=True)
            self.process.start()
            theirs.close()
        self.index, self.left = index, list(methods)
        self.stage, self.deadline = "judge", time.monotonic() + JUDGE_LIMIT
        self.pipe.send((index, methods))

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None


def run(seed: int, indices: Any, methods: list[str], jobs: int) -> Iterator[Report]:
    """Examine all models; reports come as they are made."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    waiting = iter(indices)
    workers = [Worker(seed) for _ in range(jobs)]
    busy = []
    try:
        for worker in workers:
            if (index := next(waiting, None)) is not None:
                worker.give(index, methods)
                busy.append(worker)
        while busy:
            ready = wait([worker.pipe for worker in busy], timeout=0.5)
            for worker in list(busy):
                reports, done = _listen(worker) if worker.pipe in ready else _check_time(worker)
                yield from reports
                if done:
                    busy.remove(worker)
                    if (index := next(waiting, None)) is not None:
                        worker.give(index, methods)
                        busy.append(worker)
    finally:
        for worker in workers:
            worker.stop()


def _listen(worker: Worker) -> tuple[list[Report], bool]:
    """One message of a worker."""
    try:
        kind, content = worker.pipe.recv()
    except EOFError:
        worker.process.join()
        if worker.process.exitcode == -signal.SIGPROF:
            return _broken(worker, Finding("timeout", f"more than {CALL_LIMIT:g} s"))
        return _broken(worker, Finding("exception", f"the process died with code {worker.process.exitcode}"))
    if kind == "report":
        worker.left = [method for method in worker.left if method != content.method]
        return [content], False
    worker.stage = kind
    worker.deadline = time.monotonic() + (HANG_LIMIT if kind == "call" else JUDGE_LIMIT)
    return [], kind == "done"


def _check_time(worker: Worker) -> tuple[list[Report], bool]:
    if time.monotonic() < worker.deadline:
        return [], False
    if worker.stage == "call":
        return _broken(worker, Finding("timeout", f"more than {HANG_LIMIT:g} s by the clock"))
    return _broken(worker, Finding("unjudged", f"the judge needs more than {JUDGE_LIMIT:g} s"))


def _broken(worker: Worker, finding: Finding) -> tuple[list[Report], bool]:
    """Kill the process and go on with the next method of the same model."""
    from fuzz.models import family

    worker.stop()
    method, *rest = worker.left
    if rest:
        worker.give(worker.index, rest)
    return [Report(worker.index, family(worker.index), method, CALL_LIMIT, [finding])], not rest
