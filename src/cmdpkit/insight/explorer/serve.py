"""Serving the explorer on the loopback address until Ctrl-C."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from cmdpkit.model import CMDP

MISSING = "the explorer needs dash and plotly: pip install 'cmdpkit[look]'"
HOST = "127.0.0.1"
PORT = 8050


def explore(
    cmdp: CMDP,
    *,
    name: str = "",
    parameters: dict[str, Any] | None = None,
    title: str = "model",
    subtitle: str = "",
    source: Sequence[str] = ("model.npz",),
    port: int = PORT,
    time_limit: float = 10.0,
    ready: Callable[[str], Any] = print,
) -> None:
    """Serve the explorer of a model to this machine until Ctrl-C.

    Args:
        cmdp: the model.
        name, parameters: if it is built in, its name and the parameters it was made with, which can then be moved too.
        title, subtitle: the heading.
        source: the model in commands, with its flags, as in ["table.csv", "--set", "gamma=0.9"].
        port: the port; 0 takes a free one.
        time_limit: seconds that an answer may take; then the best so far is shown.
        ready: called with the address when the page can be opened.
    """
    with serving(cmdp, name, parameters, title, subtitle, source, port, time_limit) as (server, address):
        ready(address)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


@contextlib.contextmanager
def serving(
    cmdp: CMDP,
    name: str = "",
    parameters: dict[str, Any] | None = None,
    title: str = "model",
    subtitle: str = "",
    source: Sequence[str] = ("model.npz",),
    port: int = 0,
    time_limit: float = 10.0,
) -> Iterator[tuple[Any, str]]:
    """A server that is ready to serve, and its address. At the end nothing of it runs any more."""
    if find_spec("dash") is None or find_spec("plotly") is None:
        raise ImportError(MISSING)
    from werkzeug.serving import WSGIRequestHandler, make_server

    from cmdpkit.insight.explorer.app import Explorer
    from cmdpkit.insight.explorer.dials import Desk

    class Quiet(WSGIRequestHandler):
        def log_request(self, *_: Any) -> None:
            """Requests are not logged."""

    taken = _listen(port)
    try:
        own = taken.getsockname()[1]
        explorer = Explorer(Desk(cmdp, name, parameters, time_limit), title, subtitle, source, time_limit, own)
        server = make_server(HOST, own, explorer.app.server, threaded=True, request_handler=Quiet, fd=taken.detach())
    except BaseException:
        taken.close()
        raise
    try:
        yield server, f"http://{HOST}:{own}/"
    finally:
        explorer.answers.latest.cancel()
        server.server_close()


def _listen(port: int) -> socket.socket:
    """A socket on the loopback address; taken before the model is looked at, so that a busy port is told at once."""
    place = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        place.bind((HOST, port))
        place.listen(128)
    except OSError as error:
        place.close()
        raise OSError(f"port {port} cannot be used ({error.strerror}); choose another one, or 0 for any") from None
    return place
