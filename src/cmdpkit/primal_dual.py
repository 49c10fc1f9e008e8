"""The loop: every primal-dual method of the paper, with any rule and any learner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from cmdpkit.rules import Array, Rule, Weights


class Learner(Protocol):
    """Owns a policy, tells its values, and improves it for a given mix of costs."""

    def objective_value(self) -> float: ...
    def constraint_values(self) -> Array: ...
    def improve(self, weights: Weights) -> int: ...


@dataclass(frozen=True)
class Iterate:
    """State after macro step k: the learner's policy is π_k, with these values and multipliers."""

    k: int
    objective: float  # V_0(π_k), minimised
    v: Array  # V_1..V_m at π_k, feasible when ≤ 0
    multipliers: Array  # λ_k
    weights: Weights  # with which π_{k−1} was improved to π_k
    inner_steps: int  # t_{k−1}, natural-gradient steps taken for it
    distance: float | None = None  # from the optimality conditions, in units of V_0, where the method knows it


def primal_dual(learner: Learner, rule: Rule, multipliers: Array | None = None) -> Iterator[Iterate]:
    """Yield π_1, π_2, ... without end: whoever watches decides when to stop.

    `multipliers` replaces the rule's own λ_0.
    """
    v = learner.constraint_values()  # V_1..V_m at the current policy; feasible means ≤ 0
    lam = rule.start(v) if multipliers is None else multipliers
    k = 0
    while True:
        weights = rule.weights(lam, v)
        inner_steps = learner.improve(weights)  # inner loop: t_k KL-anchored natural-gradient steps
        v_next = learner.constraint_values()
        lam = rule.update(lam, v, v_next)
        v = v_next
        k += 1
        yield Iterate(k, learner.objective_value(), v, lam, weights, inner_steps)
