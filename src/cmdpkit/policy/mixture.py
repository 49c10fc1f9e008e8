"""Mixtures of policies, of which one is drawn per episode."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from cmdpkit.checks import ROW_SUM_TOLERANCE, Array, as_floats, freeze, refreeze
from cmdpkit.files import PathLike, load_arrays, save_arrays
from cmdpkit.model import Pairs
from cmdpkit.policy.tabular import TabularPolicy, as_policy
from cmdpkit.tables import mixture_html


class MixturePolicy:
    """A mixture of policies: one is drawn at the start of every episode and then followed; the paper's (1/K) Σ π_k.

    Its values are the averages of theirs. Averaging the probabilities would give a different policy.

    Args:
        policies: `TabularPolicy` objects of the same size, or `StagedPolicy` objects.
        weights: probability of each policy; uniform by default.

    Example:
        >>> left, right = TabularPolicy([[1.0, 0.0]]), TabularPolicy([[0.0, 1.0]])
        >>> mixture = MixturePolicy([left, right], [0.25, 0.75])
        >>> mixture
        MixturePolicy(2 policies, states=1, actions=2)
        >>> mixture.draw(np.random.default_rng(0)).sample(0, np.random.default_rng(0))
        1
    """

    def __init__(self, policies: Iterable[Any], weights: Any = None) -> None:
        self.policies: tuple[Any, ...] = tuple(policies)
        if not self.policies:
            raise ValueError("a mixture needs at least one policy")
        sizes = {_size(p) for p in self.policies}
        if len(sizes) > 1 or not all(isinstance(size, tuple) for size in sizes):
            raise ValueError(f"a mixture needs TabularPolicy objects of the same size, got {sorted(map(str, sizes))}")
        if not all(p.pairs.same(self.policies[0].pairs) for p in self.policies):
            raise ValueError("a mixture needs policies with the same available actions")
        count = len(self.policies)
        table = np.full(count, 1.0 / count) if weights is None else as_floats(weights, "weights")
        if table.shape != (count,) or not np.isfinite(table).all() or (table < 0.0).any():
            raise ValueError(f"a mixture of {count} policies needs as many weights, all finite and nonnegative")
        if abs(table.sum() - 1.0) > ROW_SUM_TOLERANCE:
            raise ValueError(f"the weights of a mixture sum to {table.sum():.12g}, not 1")
        self.weights: Array = freeze(table / table.sum())  # one per policy

    @property
    def states(self) -> int:
        return int(self.policies[0].states)

    @property
    def actions(self) -> int:
        return int(self.policies[0].actions)

    def draw(self, rng: np.random.Generator) -> Any:
        """The policy to follow in this episode."""
        return self.policies[int(rng.choice(len(self.policies), p=self.weights))]

    def __len__(self) -> int:
        return len(self.policies)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({name: refreeze(value) for name, value in state.items()})

    def _repr_html_(self) -> str:
        return mixture_html(self)

    def __repr__(self) -> str:
        return f"MixturePolicy({len(self)} policies, states={self.states}, actions={self.actions})"

    def save(self, path: PathLike) -> None:
        """Write all policies and their weights to an `.npz` file, atomically and without pickle."""
        tables = np.stack([policy.log_pi for policy in self.policies])
        pairs = self.policies[0].pairs
        save_arrays(path, "cmdpkit mixture", {"log_probabilities": tables, "weights": self.weights, **pairs.arrays()})

    @classmethod
    def load(cls, path: PathLike) -> MixturePolicy:
        """Read a mixture written by `save`."""
        arrays = load_arrays(path, "cmdpkit mixture")
        try:
            tables = as_floats(arrays["log_probabilities"], "log_probabilities")
            plain = 3 - ("pair_first" in arrays)
            if tables.ndim not in (plain, plain + 1):
                raise ValueError(f"its policies have shape {tables.shape}, not (policies, states, actions)")
            kind = TabularPolicy if tables.ndim == plain else _staged_policy()
            return cls([kind.from_arrays(arrays | {"log_probabilities": table}) for table in tables], arrays["weights"])
        except KeyError as error:
            raise ValueError(f"{path} is damaged: the entry {error} is missing") from error
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} does not hold a valid mixture: {error}") from error


def _staged_policy() -> Any:
    from cmdpkit.policy.staged import StagedPolicy  # which imports this module

    return StagedPolicy


def _size(policy: Any) -> Any:
    """The size of a policy, or the name of its type if it is none."""
    if isinstance(policy, TabularPolicy):
        return policy.states, policy.actions
    if isinstance(policy, _staged_policy()):
        return policy.horizon, policy.states, policy.actions
    return type(policy).__name__


def as_any_policy(policy: Any, pairs: Pairs) -> TabularPolicy | MixturePolicy:
    """`as_policy` that also takes a mixture."""
    if not isinstance(policy, MixturePolicy):
        return as_policy(policy, pairs)
    if policy.policies[0].pairs.same(pairs):
        return policy
    return MixturePolicy([as_policy(part, pairs) for part in policy.policies], policy.weights)
