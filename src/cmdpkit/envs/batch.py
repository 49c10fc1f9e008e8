"""Batches: many copies of an environment, stepped together."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from cmdpkit.cluster import distributed
from cmdpkit.envs.costs import FloatCosts
from cmdpkit.envs.lean import LeanBatch

SAME_STEP = AutoresetMode.SAME_STEP

COPIES = 4
"""Copies made of an environment by default."""


def spread(env: Any, num_envs: int | None = None, workers: int | None = None, **options: Any) -> Any:
    """The copies of `as_batch`: in this process, in `workers` others, or on those of the cluster that is in use."""
    if not distributed() and workers in (None, 1):
        return lean_batch(env, num_envs, options)
    from cmdpkit.envs.scattered import Scattered

    if distributed() and workers is not None:
        raise ValueError("workers are processes of this machine, and a cluster has its own: leave out one of the two")
    return Scattered(env, num_envs, options, workers)


def as_batch(env: str | Callable[[], Any] | VectorEnv, num_envs: int | None = None, **options: Any) -> VectorEnv:
    """Make `num_envs` copies of an environment, each reset in the step in which its episode ends.

    Args:
        env: a registered name, for which a compiled batch is used if there is one; a function that makes one
            environment; or a vector environment, which is checked and used unchanged.
        num_envs: number of copies; 4 by default. A vector environment has its own number, which need not be repeated.
        **options: passed to `gymnasium.make` if `env` is a name.

    Example:
        >>> import gymnasium
        >>> from cmdpkit.envs import WithCosts
        >>> as_batch(lambda: WithCosts(gymnasium.make("CartPole-v1"), lambda step: step.action), num_envs=4)
        SyncVectorEnv(num_envs=4)
    """
    return _batch(env, num_envs, options, _copies)


def lean_batch(env: Any, num_envs: int | None, options: dict[str, Any]) -> VectorEnv:
    """The same for callers that read costs only, and copy what they keep: infos hold nothing else."""
    return _batch(env, num_envs, options, LeanBatch)


def _batch(
    env: Any, num_envs: int | None, options: dict[str, Any], copies: Callable[[Callable[[], Any], int], VectorEnv]
) -> VectorEnv:
    if isinstance(env, VectorEnv):
        if num_envs not in (None, env.num_envs):
            raise ValueError(f"{env} has {env.num_envs} environments, but {num_envs} are asked for")
        if not _same_step(env):
            raise ValueError(
                f"{env} does not reset in the step in which an episode ends; "
                "make it with autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP"
            )
        return env
    num_envs = COPIES if num_envs is None else num_envs
    if isinstance(env, gymnasium.Env):
        raise TypeError(
            f"{env} is one environment, but {num_envs} are needed: pass a function that makes one, as in "
            "lambda: WithCosts(gymnasium.make('CartPole-v1'), fn)"
        )
    if isinstance(env, str):
        name = env
        try:
            _import_from_here(name)
            first = gymnasium.make(name, **options)
        except (gymnasium.error.Error, ImportError) as error:
            raise ValueError(f"Gymnasium cannot make {name!r}: {error}") from error
        first.close()
        if first.spec is not None and first.spec.vector_entry_point is not None:
            batch = gymnasium.make_vec(name, num_envs=num_envs, **options)
            if _same_step(batch):
                return batch
        return copies(lambda: gymnasium.make(name, **options), num_envs)
    if not callable(env):
        raise TypeError(f"env must be a name, a function that makes an environment, or a VectorEnv, not {env!r}")
    return copies(env, num_envs)


def _import_from_here(name: str) -> None:
    """Import the module of "module:Env-v0", which may lie in the current directory, as Python itself would."""
    module, colon, _ = name.partition(":")
    if colon and importlib.util.find_spec(module.partition(".")[0]) is None and "" not in sys.path:
        sys.path.insert(0, "")
        try:
            importlib.import_module(module)
        finally:
            sys.path.remove("")


def _copies(make: Callable[[], Any], count: int) -> VectorEnv:
    # A batch takes the type of a cost from the first report: after an int 0 all other costs would be truncated.
    return SyncVectorEnv([lambda: FloatCosts(make())] * count, autoreset_mode=SAME_STEP)


def _same_step(batch: VectorEnv) -> bool:
    return batch.metadata.get("autoreset_mode") is SAME_STEP
