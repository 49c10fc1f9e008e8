"""Connections to a Ray cluster: one that runs already, or a private one on this machine.

A cluster that is started here is safe by default. Its processes listen on the loopback interface only, there is no
dashboard, every request must carry a token that is drawn for this cluster and never written to a file, its files lie in
a folder that nobody else can read, and its memory is limited. It ends with the connection, whatever happens inside.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from cmdpkit.checks import check_count

MISSING = "a cluster needs Ray: pip install 'cmdpkit[cluster]'"
NONE_RUNNING = (
    'cluster="auto" found no running Ray cluster: start one with `ray start --head`, set RAY_ADDRESS, or use '
    'cluster="local", which starts a private one on this machine'
)

NO_TOKEN = (
    "the Ray cluster at {} asks for a token that this program does not have: set RAY_AUTH_MODE=token, and copy "
    "the file ~/.ray/auth_token of its head node, or set RAY_AUTH_TOKEN"
)

STORE_SHARE, STORE_MOST = 0.25, 8 * 2**30
"""The object store of a private cluster takes this share of the available memory, and at most so many bytes."""

LONGEST_FOLDER = 40
"""Characters of the folder of a private cluster: the names of its sockets must stay below 108."""

STARTS = 3
"""Attempts to start a private cluster."""

PATIENCE = 10.0
"""Seconds until a cluster whose address was given must answer."""

LOOPBACK = "127.0.0.1"

_SETTINGS: dict[str, str | None] = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN_PATH": None,
    # Ray's own way of binding to the loopback interface; without it, it replaces 127.0.0.1 by the address of the
    # machine, and listens on all interfaces.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Environment of a private cluster, besides its token; None removes a variable."""


def check_cluster(cluster: Any) -> str | None:
    """A valid `cluster` argument, with Ray installed; otherwise raise an error that says what to write."""
    if cluster is None:
        return None
    if not isinstance(cluster, str):
        raise TypeError(f'cluster must be "local", "auto" or an address, not {type(cluster).__name__}')
    if "://" in cluster:
        raise ValueError(
            f"cluster={cluster!r} is an address of Ray Client, which cannot share memory with the workers; run this "
            'program on a node of the cluster, with cluster="auto" or the address HOST:PORT of its head'
        )
    host, _, port = cluster.rpartition(":")
    if cluster not in ("local", "auto") and not (host and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f'cluster must be "local", "auto" or an address such as "10.0.0.1:6379", not {cluster!r}')
    if importlib.util.find_spec("ray") is None:
        raise ImportError(MISSING)
    return cluster


@contextlib.contextmanager
def connect(cluster: str | None, *, workers: int | None = None, object_store: int | None = None) -> Iterator[None]:
    """Connect this process to a Ray cluster for as long as the context is open.

    A connection that is open already is used, and left open: several calls share one cluster inside of one `connect`.

    Args:
        cluster: "local" starts a private cluster on this machine; "auto" joins the one that RAY_ADDRESS names or that
            runs on this machine; any other value is the address HOST:PORT of a head node. None does nothing.
        workers: processes that a private cluster runs at the same time; by default one per processor.
        object_store: bytes of shared memory that a private cluster may use; by default a quarter of the memory that is
            available, and at most 8 GiB.

    Example:
        >>> import cmdpkit as ck
        >>> with ck.cluster.connect("local", workers=2):                                     # doctest: +SKIP
        ...     results = [ck.solve(simulator, seed=seed, cluster="local") for seed in range(10)]
    """
    cluster = check_cluster(cluster)
    if cluster != "local" and (workers is not None or object_store is not None):
        raise ValueError('workers and object_store are for cluster="local"; other clusters have their own')
    workers = None if workers is None else check_count(workers, "workers", least=1)
    object_store = None if object_store is None else check_count(object_store, "object_store", least=80 * 2**20)
    if cluster is None:
        yield
    elif _connected():
        _check_same(cluster)
        yield
    elif cluster == "local":
        with private_settings() as folder, _nothing_left(folder), _shut_down_at_the_end():
            _start(workers, object_store, folder)
            yield
    else:
        with _shut_down_at_the_end():
            _join(cluster)
            yield


def processors() -> int:
    """Tasks that the connected cluster runs at the same time."""
    import ray

    return max(1, int(ray.cluster_resources().get("CPU", 1)))


@contextlib.contextmanager
def private_settings() -> Iterator[str]:
    """Environment and folder of a cluster that is started here; both are gone afterwards."""
    importable = os.pathsep.join(path for path in sys.path if path)  # what this process imports, its workers can too
    settings = {**_SETTINGS, "RAY_AUTH_TOKEN": secrets.token_hex(32), "PYTHONPATH": importable}
    before = {name: os.environ.get(name) for name in settings}
    folder = _folder()
    _set_environment(settings)
    try:
        yield folder
    finally:
        _set_environment(before)
        shutil.rmtree(folder, ignore_errors=True)


def _set_environment(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    # Ray reads its environment when it is imported, and keeps it.
    import ray  # noqa: F401
    from ray._private import ray_constants
    from ray._raylet import AuthenticationTokenLoader, Config

    chosen = os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
    default = not ray_constants.IS_WINDOWS_OR_OSX
    ray_constants.ENABLE_RAY_CLUSTER = default if chosen is None else chosen.lower() in ("1", "true")
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _folder() -> str:
    """A folder for one cluster that only this user can enter; what Ray makes inside, all may write to."""
    parent = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="cmdpkit-", dir=parent if len(parent) < LONGEST_FOLDER - 17 else "/tmp")


def _start(workers: int | None, object_store: int | None, folder: str) -> None:
    import ray
    from ray._raylet import AuthenticationMode, get_authentication_mode

    if get_authentication_mode() != AuthenticationMode.TOKEN:
        raise RuntimeError(f"Ray {ray.__version__} has no token authentication: pip install -U 'cmdpkit[cluster]'")
    limits = {
        "num_cpus": workers or len(os.sched_getaffinity(0)),
        "object_store_memory": object_store or _default_store(),
    }
    private = {"include_dashboard": False, "_node_ip_address": LOOPBACK, "_temp_dir": f"{folder}/r"}
    started: dict[str, Any] = {}
    for attempt in range(STARTS):
        try:
            started = _init(address="local", **limits, **private)
            break
        except Exception as error:  # of no type of its own: on a busy machine Ray gives up after half a minute
            if "timed out" not in str(error) or attempt == STARTS - 1:
                raise RuntimeError(f"Ray does not start on this machine: {error}") from error
        _end(_processes(folder))
    if started["node_ip_address"] != LOOPBACK:
        raise RuntimeError(f"Ray {ray.__version__} listens on {started['node_ip_address']}, not on {LOOPBACK} alone")


def _join(cluster: str) -> None:
    from ray._private.utils import read_ray_address

    # What `ray start` has written. Ray's own "auto" takes any cluster on this machine, private ones of others too.
    found = cluster
    if cluster == "auto":
        named = os.environ.get("RAY_ADDRESS", "auto")
        found = read_ray_address() if named in ("", "auto") else named
    if not found or found == "local":
        raise ConnectionError(NONE_RUNNING)
    address = check_cluster(found) or ""
    _check_answers(address)
    _check_token(address)
    try:
        _init(address=address)
    except ConnectionError as error:
        raise ConnectionError(f"cannot join the Ray cluster at {address}: {error}") from error


def _check_answers(address: str) -> None:
    """Ray would look for the cluster for many minutes."""
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
    except OSError as error:
        raise ConnectionError(f"there is no Ray cluster at {address}: {error.strerror or error}") from error


def _check_token(address: str) -> None:
    """Without the right token Ray would wait for minutes, and not say why."""
    from ray._private.authentication import authentication_token_setup as tokens
    from ray._raylet import GcsClient
    from ray.exceptions import AuthenticationError, RpcError

    try:
        with contextlib.suppress(AttributeError):  # not in older versions
            tokens.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        tokens.ensure_token_if_auth_enabled(create_token_if_missing=False)
        GcsClient(address=address).internal_kv_keys(b"", None)
    except AuthenticationError as error:
        raise ConnectionError(NO_TOKEN.format(address)) from error
    except RpcError as error:
        raise ConnectionError(f"there is no Ray cluster at {address}: {error}") from error


def _init(**arguments: Any) -> dict[str, Any]:
    import ray

    quiet = {"configure_logging": False, "log_to_driver": False, "logging_level": "ERROR"}
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if main else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return dict(ray.init(**arguments, **quiet).address_info)
    finally:
        if main:  # ray.init replaces it
            signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def _shut_down_at_the_end() -> Iterator[None]:
    import ray

    try:
        yield
    finally:
        with _uninterrupted():
            ray.shutdown()


@contextlib.contextmanager
def _nothing_left(folder: str) -> Iterator[None]:
    """End what Ray itself has not ended, as after a start that failed."""
    try:
        yield
    finally:
        with _uninterrupted():
            _end(_processes(folder))


def _processes(folder: str) -> list[Any]:
    """The processes of the cluster in a folder."""
    import psutil  # comes with Ray

    mine = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if any(folder in argument for argument in child.cmdline()):
                mine += [child, *child.children(recursive=True)]
    return mine


def _end(processes: list[Any]) -> None:
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, timeout=PATIENCE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # Ray's records of its processes warn when they are deleted


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let no further Ctrl-C leave processes behind: it is delivered when they have ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    missed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: missed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if missed:
            signal.raise_signal(signal.SIGINT)


def _connected() -> bool:
    import ray

    return bool(ray.is_initialized())


def _check_same(cluster: str) -> None:
    """Refuse to use another cluster than the one whose address was given."""
    if cluster in ("local", "auto"):
        return
    import ray

    current = ray.get_runtime_context().gcs_address
    host, port = cluster.rsplit(":", 1)
    here = host in ("localhost", LOOPBACK) and current.rsplit(":", 1)[1] == port
    if current != cluster and not here:
        raise ValueError(f"this process is connected to the cluster at {current}, not {cluster}; call ray.shutdown()")


def _default_store() -> int:
    """Bytes of shared memory: a share of what is free, in memory and in the file system that holds it."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError):
        free = min(free, 3 * shutil.disk_usage("/dev/shm").free)
    return max(80 * 2**20, min(int(STORE_SHARE * free), STORE_MOST))
