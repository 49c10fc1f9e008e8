"""Processes on this machine that each keep a part of the environments, and answer until they are closed.

Every member is a Python of its own, started without a fork and without importing the main program again. Functions that
make environments are sent as code where they cannot be imported, lambdas included. Code therefore runs at both ends of
the pipe. It comes from nobody else: the pipe is a pair of sockets without a name, held by this process and the one that
it has started, and nothing is read from files.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any

import cloudpickle

START = "import sys; from cmdpkit.envs.processes import serve; serve(int(sys.argv[1]))"

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class Processes:
    """Members that each hold `make(what, part)`, as long as they live. See `cluster.crew.Crew`, which restarts them."""

    def __init__(self, make: Callable[[Any, Any], Any], what: Any, parts: Sequence[Any], names: Sequence[str]) -> None:
        if os.name != "posix":
            raise ValueError("workers need a system with POSIX pipes; leave out workers")
        self.names = list(names)
        self._pipes: list[Connection] = []
        self._started: list[subprocess.Popen[bytes]] = []
        weakref.finalize(self, _close, self._pipes, self._started)
        for part in parts:
            ours, theirs = Pipe()
            command, descriptor = [sys.executable, "-c", START, str(theirs.fileno())], theirs.fileno()
            single = os.environ | dict.fromkeys(THREADS, "1") | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            self._started.append(subprocess.Popen(command, pass_fds=[descriptor], env=single))
            theirs.close()
            self._pipes.append(ours)
            ours.send_bytes(cloudpickle.dumps((make, what, part)))

    def call(self, work: Callable[[Any, Any, Any], Any], shared: Any, pieces: Sequence[Any]) -> list[Any]:
        """`work(part, shared, piece)` of every member, side by side."""
        for pipe, piece, name in zip(self._pipes, pieces, self.names, strict=True):
            try:
                pipe.send_bytes(cloudpickle.dumps((work, shared, piece)))
            except OSError as error:
                raise RuntimeError(f"the process of {name} has ended") from error
        answers = [self._answer(pipe, name) for pipe, name in zip(self._pipes, self.names, strict=True)]
        for (answer, failed), name in zip(answers, self.names, strict=True):
            if failed:
                answer.add_note(name)
                raise answer
        return [answer for answer, _ in answers]

    def _answer(self, pipe: Connection, name: str) -> tuple[Any, bool]:
        try:
            return cloudpickle.loads(pipe.recv_bytes())  # type: ignore[no-any-return]
        except (EOFError, OSError):
            return RuntimeError(f"the process of {name} has ended"), True


def _close(pipes: list[Connection], started: list[subprocess.Popen[bytes]]) -> None:
    for pipe in pipes:
        pipe.close()
    for process in started:
        try:
            process.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def serve(descriptor: int) -> None:
    """Make the part, and answer calls until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's: it ends the run, and then this process
    pipe = Connection(descriptor)
    part, trouble = None, None
    try:
        make, what, which = cloudpickle.loads(pipe.recv_bytes())
        part = make(what, which)
    except Exception as error:
        trouble = error
    while True:
        try:
            message = pipe.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)  # nothing is left to be done, and tearing down an interpreter takes time
        pipe.send_bytes(_attempt(part, trouble, message))


def _attempt(part: Any, trouble: Exception | None, message: bytes) -> bytes:
    try:
        if trouble is not None:
            raise trouble
        work, shared, piece = cloudpickle.loads(message)
        return bytes(cloudpickle.dumps((work(part, shared, piece), False)))
    except Exception as error:
        try:
            sent = cloudpickle.dumps((error, True))
            cloudpickle.loads(sent)  # some errors cannot be made again from their arguments
            return bytes(sent)
        except Exception:
            return bytes(cloudpickle.dumps((RuntimeError(f"{type(error).__name__}: {error}"), True)))
