"""Unconstrained MDPs: the oracle of every dual bound, solved by policy iteration with rigorous error bounds.

For weights w ≥ 0 the Lagrangian  L_w(π) = w_0 V_0(π) + Σ w_i V_i(π)  is the value of an ordinary MDP. Its minimum
bounds the constrained problem from below (w = (1, λ)), or proves that there is no feasible policy (w = (0, y)).

An `Oracle` answers for one w after another. It keeps the values V_0..V_m of its last policy in every state, so that
the next question starts from that policy's exact Lagrangian at the new weights. Values are only as exact as the step
needs: a bound (MacQueen) holds for any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.evaluation.backup import Backup, bellman, follow, induction, induction_over_stages
from cmdpkit.evaluation.bounds import backup_errors, bound_from_backup, local_bound
from cmdpkit.evaluation.gains import policy_system, uniform_system
from cmdpkit.evaluation.system import Plan, PolicySystem, rounding_floor
from cmdpkit.model import CMDP, StagedTransitions

MAX_ROUNDS = 1_000
"""Policy iteration ends long before this; the bound is valid wherever it stops."""

PLATEAU = 50
"""So many policies in a row may have the same average."""

LOOSE = 0.05
"""While policies still change, values are found to this part of what is known to be left."""

BACKUPS = 15
"""Bellman backups that may stand in for the evaluation of a policy: so many are as fast (measured)."""

SWEPT = 4
"""Sweeps of one policy between two Bellman backups of a large model: together they take as long (measured)."""

SINGLE, COARSE, HUGE = float(np.finfo(np.float32).eps), 100.0, 1e30
"""Relative rounding error of single precision. It is used while backups change values by so many times what it rounds,
and where no value comes near the ends of its range."""

ROUGH = 1e-4
"""Values of the first policy of a large model are found to this part of their largest."""

MOST_BACKUPS, TRIED = 30, 6
"""Where so many do not suffice, values of policies are found instead; whether they will is seen after some of them."""

CHORDS = 10
"""The same for backups that are followed by a solution with known factors."""

FOLLOWED = 8
"""Steps of the greedy policy after such a backup, where chains are swept: they bring more than another backup does and
cost no more (measured)."""


Stop = Callable[[], bool]
"""Asked after every evaluation whether to give up."""


def never() -> bool:
    return False


class Minimum(NamedTuple):
    """An (almost) minimal deterministic policy of L_w, and how small L_w can be at most and at least."""

    choice: Any  # (S,) which of its actions is taken in each state
    values: Array  # (m + 1,) V_0..V_m of that policy, in the internal sign convention
    bound: float  # min over all policies of L_w is at least this, rounding included
    evaluations: int


def minimise(cmdp: CMDP, weights: Array, start: Any = None, stop: Stop = never) -> Minimum:
    """Minimise w_0 V_0 + Σ w_i V_i by policy iteration, starting from the choice `start`."""
    return Oracle(cmdp, stop, start).minimise(weights)


def polished_bound(cmdp: CMDP, weights: Array, stop: Stop = never) -> float:
    """A lower bound on min_π w·V(π) that loses less to rounding where values differ much between states.

    The values of the best policy are lowered by what rounding errors, collected along its way, may have added: after
    that the Bellman backup is above them, and every state pays for its own errors only.
    """
    oracle = Oracle(cmdp, stop)
    bound = oracle.minimise(weights).bound
    if oracle.state_values is None or stop():
        return bound
    value = oracle.state_values @ weights
    missing, rounding = backup_errors(cmdp, weights, value)
    collected = policy_system(cmdp, choice=oracle.choice, plan=oracle.plan).solve(2.0 * rounding + missing)
    guesses = (value, value - collected)
    return max(bound, *(local_bound(cmdp, weights, guess) for guess in guesses))


class Oracle:
    """Minimises w·V for one w after another, each from where the last one ended.

    Args:
        cmdp: the model.
        stop: asked after every evaluation whether to give up; the bound is valid at any time.
        choice: the first policy, by default a far-sighted one for the first costs.
        accuracy: (m + 1,) error that is allowed in V_0..V_m of an answer; 0 is as exact as rounding allows.
    """

    def __init__(self, cmdp: CMDP, stop: Stop = never, choice: Any = None, accuracy: Array | float = 0.0) -> None:
        self.cmdp = cmdp
        self.stop = stop
        self.choice = choice
        self.accuracy = np.zeros(cmdp.num_rows + 1) + accuracy
        self.plan = Plan()
        self.system: PolicySystem | None = None  # of the last policy
        self.state_values: Array | None = None  # (S, m + 1) V_0..V_m of the last policy

    def minimise(
        self,
        weights: Array,
        gap: float = 0.0,
        rounds: int = MAX_ROUNDS,
        hopeless: float = -np.inf,
        guess: Array | None = None,
    ) -> Minimum:
        """Howard's policy iteration on L_w, until L_w(π) is within `gap` of the bound or no policy is better.

        It may end earlier, after `rounds` policies or when L_w(π) falls below `hopeless`: the minimum is less still.
        It starts from the policy that is greedy for `guess` (S, m + 1), the values of any policy, if there is one.
        """
        cmdp = self.cmdp
        if isinstance(cmdp.transitions, StagedTransitions):
            return self._over_stages(weights)
        cost = weights @ cmdp.costs
        largest = max(float(cost.max()), -float(cost.min()))
        blocks = cmdp.blocks
        if blocks is not None:
            self.choice = induction(cmdp, cost, blocks)
        elif self.choice is None:
            far = self._far_values(cost)
            if gap > 0.0 and self.backs_up:
                bound, choice = self.back_up(weights, far, gap, hopeless)
                if choice is not None:
                    return self._take_roughly(choice, weights, bound)
            self.choice = self._greedy(cost, far)
        offset = float(weights[1:] @ cmdp.offsets)
        bound, evaluations, least, idle = -np.inf, 0, np.inf, 0
        average = cmdp.criterion == "average"
        loose = np.inf if self.state_values is None else 0.0  # error that the values may still have
        if blocks is not None:
            evaluations, loose = 1, self._evaluate(weights, 0.0)
        elif guess is not None:
            self.choice, self.state_values = bellman(cmdp, cost, guess @ weights, self.choice).choice, guess
            evaluations, loose = 1, self._evaluate(weights, 0.0)
        elif self.state_values is None:
            evaluations, loose = 1, self._evaluate(weights, LOOSE * largest / cmdp.step_weight)
        while True:
            assert self.state_values is not None
            value = self.state_values @ weights
            # Keep the action where the gain is rounding: ties must not make the iteration wander.
            noise = 1e-14 * (float(np.abs(value).max()) + largest)
            backup = bellman(cmdp, cost, value, self.choice, noise)
            bound = max(bound, bound_from_backup(cmdp, weights, value, backup))
            now = float(cmdp.initial @ value) - offset
            left, total = now - bound, now if average else float(value.sum())
            # Every policy is better than the last, or it is rounding; an average may stay while the bias improves.
            idle = idle + 1 if loose == 0.0 and total >= least else 0
            enough = left <= gap or now < hopeless or evaluations >= rounds
            settled = not backup.moved or enough or idle > (PLATEAU if average else 0)
            if self.stop() or evaluations > 2 * rounds or (settled and loose == 0.0):
                break
            if settled:  # the policy stays: now find its values as exactly as is asked
                loose = self._evaluate(weights, 0.0)
            else:
                least = min(least, total) if loose == 0.0 else np.inf
                self.choice = backup.choice
                loose = self._evaluate(weights, LOOSE * left)
            evaluations += 1
        return self._minimum(bound, evaluations)

    def begin(self, weights: Array) -> None:
        """Find a first policy, a far-sighted one. After that the plan is known."""
        cost = weights @ self.cmdp.costs
        self.choice = self._greedy(cost, self._far_values(cost))

    def improvement(self, weights: Array) -> tuple[float, Any]:
        """A bound on min_π w·V(π) from the values of the last policy, and a better choice; None if there is none."""
        assert self.state_values is not None
        cost, value = weights @ self.cmdp.costs, self.state_values @ weights
        noise = 1e-14 * (float(np.abs(value).max()) + float(np.abs(cost).max()))
        backup = bellman(self.cmdp, cost, value, self.choice, noise)
        return bound_from_backup(self.cmdp, weights, value, backup), backup.choice if backup.moved else None

    def take(self, choice: Any, weights: Array, bound: float = -np.inf, guess: Array | None = None) -> Minimum:
        """Evaluate another policy, to all the accuracy that is asked, from a guess of its values if there is one."""
        self.choice = choice
        self.state_values = self.state_values if guess is None else guess
        self._evaluate(weights, 0.0)
        return self._minimum(bound, 1)

    def _take_roughly(self, choice: Any, weights: Array, bound: float) -> Minimum:
        """The same for a policy that is a start only. As a column it claims no better values than it has."""
        self.choice = choice
        error = ROUGH * self.cmdp.cost_sizes / self.cmdp.step_weight
        self._evaluate(weights, 0.0, error)
        found = self._minimum(bound, 1)
        return found._replace(values=found.values + error)

    @property
    def backs_up(self) -> bool:
        """Whether the chains of the model mix, such that `back_up` is the way to bound L_w."""
        return self.plan.method == "sweeps" and self.cmdp.criterion != "average"

    def back_up(self, weights: Array, value: Array, gap: float, hopeless: float = -np.inf) -> tuple[float, Any]:
        """A bound on min_π w·V(π) and a policy within `gap` of it, by modified policy iteration from any values (S,).

        Only L_w itself is swept, one number per state, and no policy is evaluated to the end: with TV the Bellman
        backup of V, the values of the greedy policy are at most TV + Σ_{k≥1} γᵏ max (TV − V), and those of the best one
        at least the same with the minimum. The policy is None where that takes too many backups.

        Far from the end values are kept in single precision, which halves the memory that is read at random. A bound
        holds for any V, so also for a rounded one: sums and backups are in double precision.
        """
        cmdp, choice = self.cmdp, np.zeros(self.cmdp.states, dtype=np.int32) if self.choice is None else self.choice
        cost, offset = weights @ cmdp.costs, float(weights[1:] @ cmdp.offsets)
        tail, bound = cmdp.gamma / (1.0 - cmdp.gamma), -np.inf
        largest = float(np.abs(weights) @ cmdp.cost_sizes) / (1.0 - cmdp.gamma)
        noise = SINGLE * largest if 1.0 / HUGE < largest < HUGE else np.inf
        left: list[float] = []
        for more in range(MOST_BACKUPS, 0, -1):
            backup = bellman(cmdp, cost, value, choice)
            bound, choice = max(bound, bound_from_backup(cmdp, weights, value, backup)), backup.choice
            most = float(cmdp.initial @ backup.values) + tail * backup.highest - offset
            if most - bound <= gap or most < hopeless or self.stop():
                return bound, choice
            left.append(most - bound)
            # At the pace of the last three
            if len(left) >= TRIED and left[-1] * (left[-1] / left[-4]) ** (more / 3.0) > gap:
                break
            rough = COARSE * noise < backup.highest - backup.lowest
            value = follow(cmdp, cost, backup.values.astype(np.float32) if rough else backup.values, choice, SWEPT)
        return bound, None

    def glance(
        self, weights: Array, guess: Array, gap: float, excess: float, system: PolicySystem | None = None
    ) -> float | None:
        """A bound on min_π w·V(π) by Bellman backups, from the values (S, m + 1) of a policy.

        It is within `gap` of the minimum, or proves that the policy is within `excess` of it. None as soon as that is
        known to take longer than the evaluation of a policy.

        Where chains are swept, the policy that is greedy after a backup is followed for some sweeps, which cost a
        fraction of a backup over all actions (modified policy iteration).

        With the `system` of that policy, whose factors are known, the change of each backup is taken as far as it goes
        while the policy is played: V + (I − γ P_π)⁻¹ (TV − V). That is Newton's method (policy iteration) with the
        first policy's matrix for all of them. Where few states change their action it takes a handful of steps, however
        slowly the chain mixes.
        """
        cmdp, value = self.cmdp, guess @ weights
        cost, offset = weights @ cmdp.costs, float(weights[1:] @ cmdp.offsets)
        average = cmdp.criterion == "average"
        tail = 0.0 if average else cmdp.gamma / (1.0 - cmdp.gamma)
        choice = np.zeros(cmdp.states, dtype=np.int32)
        now = float(cmdp.initial @ value) - offset
        bound, last = -np.inf, np.inf
        for more in range((BACKUPS if system is None else CHORDS) - 1, -1, -1):
            backup = bellman(cmdp, cost, value, choice)
            bound = max(bound_from_backup(cmdp, weights, value, backup), bound)
            # No policy is worse than TV + Σ_{k≥1} γᵏ max (TV − V) if it is greedy for V
            most = backup.highest if average else float(cmdp.initial @ backup.values) + tail * backup.highest
            left = min((most - offset - bound) / gap, (now - bound) / excess)
            if left <= 1.0:
                return bound
            if not left * (left / last) ** more <= 1.0:  # at the pace of the last backup
                break
            last = left
            value = self._followed(backup, cost) if system is None else value + system.solve(backup.values - value)
        return None

    def _followed(self, backup: Backup, cost: Array) -> Array:
        """The values of a backup, and where chains are swept, after some more steps of its greedy policy."""
        cmdp, value = self.cmdp, backup.values
        if self.plan.method != "sweeps" or cmdp.criterion == "average":
            return value
        return follow(cmdp, cost, value, backup.choice, FOLLOWED)

    def _over_stages(self, weights: Array) -> Minimum:
        """Backward induction: policy, values and bound in one pass."""
        backup, self.state_values = induction_over_stages(self.cmdp, weights)
        self.choice, self.system, self.plan.method = backup.choice, None, "stages"
        return self._minimum(bound_from_backup(self.cmdp, weights, backup.values, backup), 1)

    def _minimum(self, bound: float, evaluations: int) -> Minimum:
        assert self.state_values is not None
        cmdp = self.cmdp
        values = cmdp.initial @ self.state_values
        values[1:] -= cmdp.offsets
        return Minimum(self.choice, values, bound, evaluations)

    def _far_values(self, cost: Array) -> Array:
        """The values of the uniform policy, which goes everywhere and so sees far. After that the plan is known.

        A policy that is greedy for the costs at hand may never come near what is worth having, and policy iteration
        then finds it one state after the other: a hundred policies for a grid of 100 x 100, against one from here.
        """
        return uniform_system(self.cmdp, self.plan).rough(self.cmdp.pairs.mean(cost))

    def _greedy(self, cost: Array, value: Array) -> Any:
        return bellman(self.cmdp, cost, value, np.zeros(self.cmdp.states, dtype=np.int32)).choice

    def _evaluate(self, weights: Array, error: float, least: Array | float = 0.0) -> float:
        """V_0..V_m of the current policy, with an error of w·V of at most `error`. Returns that, 0 if fully exact.

        Errors of single values may be `least` in any case.
        """
        cmdp = self.cmdp
        self.system = None  # one chain at a time
        self.system = policy_system(cmdp, choice=self.choice, plan=self.plan)
        wanted = np.maximum(np.maximum(self.accuracy, least), rounding_floor(cmdp))
        most = 1e-3 * cmdp.cost_sizes / cmdp.step_weight
        share = error / weights.size / np.maximum(weights, 1e-30 + error * 1e-30)
        accuracy = np.maximum(wanted, np.minimum(share, most))
        policy_cost = cmdp.pairs.at(cmdp.costs, self.choice)
        self.state_values = self.system.state_values(policy_cost, self.state_values, accuracy)
        return 0.0 if self.plan.is_direct or (accuracy <= wanted).all() else error
