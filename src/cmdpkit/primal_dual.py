"""The loop: every primal-dual method, with any rule and any learner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from cmdpkit.checks import ConstraintArray
from cmdpkit.rules.base import Rule, View, Weights


class Learner(Protocol):
    """Owns a policy, evaluates it, and improves it for a given mix of costs.

    It honours every field of `Weights` or refuses it, and `restore(state())` restores it bit for bit.
    """

    def look(self) -> View:
        """What a rule may know of the current policy."""

    def improve(self, weights: Weights) -> int:
        """Take t_k mirror steps on the mixed cost, anchored at the current policy; returns t_k."""

    def state(self) -> dict[str, Any]:
        """The complete state of the learner, as arrays, numbers and strings."""

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state returned by `state()`."""


@dataclass(frozen=True)
class Iterate:
    """What is known after macro step k: the learner's policy is π_k, with these values and multipliers."""

    k: int
    objective: float  # V_0(π_k), minimised
    v: ConstraintArray  # V_1..V_m at π_k, feasible when ≤ 0
    multipliers: ConstraintArray  # λ_k
    weights: Weights  # with which π_{k−1} was improved
    inner_steps: int  # t_{k−1}, mirror steps from π_{k−1} to π_k
    state: Any  # state of the rule
    distance: float | None = None  # residual of the optimality conditions, in units of V_0, if the rule computes it


def primal_dual(learner: Learner, rule: Rule, state: Any = None, done: int = 0) -> Iterator[Iterate]:
    """Yield the iterates π_1, π_2, ...; the caller decides when to stop.

    Args:
        learner: owns the policy, initially π_0.
        rule: sets weights and multipliers.
        state: state of the rule to continue from; `rule.start` by default.
        done: number of macro steps made before.
    """
    view = learner.look()  # objective and V_1..V_m at the current policy; feasible means ≤ 0
    state = rule.start(view) if state is None else state
    k = done
    while True:
        weights, state = rule.propose(state, view)  # with which weights, step and accuracy to improve the policy
        inner_steps = learner.improve(weights)  # inner loop: t_k KL-anchored natural-gradient steps
        view = learner.look()
        state = rule.observe(state, view)  # the dual sees the new policy
        k += 1
        distance = getattr(state, "distance", None)
        yield Iterate(k, view.objective, view.values, state.multipliers, weights, inner_steps, state, distance)
