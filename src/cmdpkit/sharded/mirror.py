"""Mirror descent on one block: log-probabilities in slices, steps that are local to a state, sums for the rule.

What learners/exact.py computes on a whole model, block by block; the rule sees sums over the blocks. Products over
pairs are written with `einsum`, whose order of summation is always the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.evaluation.backup import looking_ahead, padded
from cmdpkit.evaluation.threads import use_at_most
from cmdpkit.files import load_arrays, save_arrays
from cmdpkit.model.sharded import ShardedCMDP
from cmdpkit.sharded.exchange import Inbox, Messages
from cmdpkit.sharded.shard import KIND
from cmdpkit.sharded.subspace import SubspaceShard

CURRENT = "current"
"""What the mirror steps lead to, among the policies of a block."""

POLICY, FOUND = ("log_pi", "anchor", "level"), ("visits", "advantages")
"""Tables that a checkpoint holds: of the policy and the last step to it, and of its evaluation."""


class Normaliser(NamedTuple):
    """The logarithm ℓ of a mirror step's normaliser in a block."""

    highest: float
    visited: float  # Σ x ℓ
    visits: float  # Σ x


class MirrorShard(SubspaceShard):
    """A block with a policy that is improved by mirror steps."""

    def begin(self, _: Inbox) -> tuple[None, Messages]:
        """Start from the uniform policy."""
        self.log_pi = np.log(self.pairs.uniform())
        self.anchor = self.log_pi
        self.soft = np.zeros(self.size)
        self.level = np.zeros(self.states)
        return None, []

    def take(self, _: Inbox) -> tuple[Any, Messages]:
        """Make the policy the one whose values and visits are computed next."""
        self.chain = self._look = None
        self.policies[CURRENT] = np.exp(self.log_pi)
        return self._mix(self.policies[CURRENT])

    def hold(self, _: Inbox, anchor: str | None, floor: float) -> tuple[None, Messages]:
        """Set the anchor of the next step: the current policy, or that of the last step ("keep", "return")."""
        if anchor == "return":
            self.log_pi = self.anchor
        self.log_pi = self._above(floor)
        if anchor != "keep":
            self.anchor = self.log_pi
        return None, []

    def _above(self, floor: float) -> Any:
        return self.log_pi if self.log_pi.min() >= floor else self._softmax(np.maximum(self.log_pi, floor))

    def _softmax(self, logits: Any) -> Any:
        top = self.pairs.max(logits)
        total = self.pairs.sum(np.exp(logits - self.pairs.over(top)))
        return logits - self.pairs.over(top + np.log(total))

    # -- scalar values: of a mixed cost with the divergence from the anchor, or of that divergence alone -------------

    def seek(self, _: Inbox, weights: Array, alpha: float, cold: bool) -> tuple[None, Messages]:
        """Prepare the values of Σ_a π (Σ w_i c_i + α log(π/anchor)); sends the guess."""
        cost = self.pairs.like(self._cost(weights)) + alpha * (self.log_pi - self.anchor)
        self._soft_cost = self.pairs.sum(self.policies[CURRENT] * cost)
        if cold:
            self.soft[:] = 0.0
        return None, self.exchange.send(self.soft[self.own])

    def soft_sweep(self, inbox: Inbox) -> tuple[tuple[float, float], Messages]:
        """U ← b + γ P_π U; returns the extremes of the change."""
        self.exchange.receive(inbox, self.soft)
        after = self._soft_cost + self.gamma * (self.chain @ self.soft)
        change = after - self.soft[self.own]
        self.soft[self.own] = after
        return (float(change.min()), float(change.max())), self.exchange.send(after)

    def soft_settle(self, inbox: Inbox, shift: float) -> tuple[None, Messages]:
        self.exchange.receive(inbox, self.soft)
        self.soft += shift
        return None, []

    def soft_backup(self, inbox: Inbox, weights: Array, step: float) -> tuple[Normaliser, Messages]:
        """V ← V − ℓ/step with ℓ = log Σ_a π_k exp(−step (c̃ + γPV)) + step V; returns ℓ before that."""
        self.exchange.receive(inbox, self.soft)
        level = self._level(weights, step)
        self.soft[self.own] -= level / step
        return self._normaliser(level), self.exchange.send(self.soft[self.own])

    def _level(self, weights: Array, step: float) -> Array:
        ahead = self.pairs.like(self._cost(weights) + self.gamma * (self.transitions @ self.soft))
        logits = self.anchor - step * ahead
        top = self.pairs.max(logits)
        total = self.pairs.sum(np.exp(logits - self.pairs.over(top)))
        return np.asarray(top + np.log(total) + step * self.soft[self.own])

    def _normaliser(self, level: Array) -> Normaliser:
        visited = float(np.einsum("s,s->", self.visits, level))
        return Normaliser(float(level.max()), visited, float(self.visits.sum()))

    def mirror(self, inbox: Inbox, weights: Array, step: float) -> tuple[None, Messages]:
        """log π′ = log π_k − step (c̃ + γPṼ) − log Z: a step from the anchor with the values found last."""
        self.exchange.receive(inbox, self.soft)
        ahead = self.pairs.like(self._cost(weights) + self.gamma * (self.transitions @ self.soft))
        logits = self.anchor - step * ahead
        self.log_pi = self._softmax(logits)
        rows = self.pairs.rows(0)
        # Any action gives ℓ = log Z + step Ṽ
        first = logits.ravel()[rows] - self.log_pi.ravel()[rows]
        self.level = first + step * self.soft[self.own]
        return None, []

    # -- what the rule asks -----------------------------------------------------------------------------------------

    def worth(self, _: Inbox) -> tuple[tuple[Array, Normaliser, float], Messages]:
        """V_i = Σ x π c_i of all costs, ℓ of the last step, and the divergence from the anchor."""
        pi = self.policies[CURRENT]
        self.occupancy = self.pairs.over(self.visits) * pi
        flat = self.occupancy.ravel()
        values = np.array([np.einsum("p,p->", flat, cost) for cost in self.costs])
        apart = float(np.einsum("p,p->", flat, (self.log_pi - self.anchor).ravel()))
        return (values, self._normaliser(self.level), apart), []

    def advance(self, inbox: Inbox) -> tuple[None, Messages]:
        """A_i(s, a) = c_i + γ P V_i − V_i of all costs, from the values of the last sweeps."""
        self.exchange.receive(inbox, self.values)
        table = padded(self.costs.T)
        looking_ahead(self.transitions, self.gamma, table, 1.0, self.pairs.heads)(
            self.values, self.values[self.own], table
        )
        self.advantages = table[:, : self.columns]
        return None, []

    def part(self, inbox: Inbox, floor: float) -> tuple[None, Messages]:
        """log π − A_K, with K the divergence from the anchor: where a step from the anchor starts."""
        self.exchange.receive(inbox, self.soft)
        ahead = self.pairs.like(self.gamma * (self.transitions @ self.soft))
        own = self.pairs.over(self.soft[self.own])
        raised = self._above(floor)
        self.from_anchor = raised - (raised - self.anchor + ahead - own)
        return None, []

    def respond(
        self, _: Inbox, prices: Array, units: Array, step: float, keep: bool, floor: float
    ) -> tuple[tuple[float, Array, Array], Messages]:
        """The sums of learners/exact.py's `MirrorResponse`: soft minimum, Σ x π A_i, and the Gram matrix."""
        pairs = self.pairs
        start = self.from_anchor if keep else self._above(floor)
        logits = start - step * pairs.like(self.advantages[:, 0])
        for i, price in enumerate(prices, 1):
            logits = logits - step * (price * units[i - 1]) * pairs.like(self.advantages[:, i])
        top = pairs.max(logits)
        pi = np.exp(logits - pairs.over(top))
        total = pairs.sum(pi)
        pi /= pairs.over(total)
        soft = -float(np.einsum("s,s->", self.visits, top + np.log(total))) / step
        weight = (pairs.over(self.visits) * pi).ravel()
        m = len(prices)
        tables = [units[i] * self.advantages[:, i + 1] for i in range(m)]
        values = np.array([np.einsum("p,p->", weight, table) for table in tables])
        centred = [pairs.like(table) - pairs.over(pairs.sum(pi * pairs.like(table))) for table in tables]
        gram = np.empty((m, m))
        for i in range(m):
            for j in range(m):
                gram[i, j] = np.einsum("p,p,p->", weight, centred[i].ravel(), centred[j].ravel())
        return (soft, values, gram), []

    def gain(self, _: Inbox, weights: Array) -> tuple[float, Messages]:
        """−Σ_s x(s) min_a (Σ w_i A_i)(s, a)."""
        table = weights[0] * self.advantages[:, 0]
        for i in range(1, self.columns):
            table = table + weights[i] * self.advantages[:, i]
        return -float(np.einsum("s,s->", self.visits, self.pairs.min(self.pairs.like(table)))), []

    def play(self, _: Inbox) -> tuple[None, Messages]:
        """Make the most probable actions the current choice, from which an oracle starts."""
        self._chosen[:] = self.pairs.argmin(-self.log_pi)
        return None, []

    # -- files ------------------------------------------------------------------------------------------------------

    def write_mirror(self, _: Inbox, folder: str, name: str) -> tuple[None, Messages]:
        """Write all that the next step depends on to a file."""
        own = {"values": self.values[self.own, : self.columns], "soft": self.soft[self.own]}
        tables = {key: getattr(self, key) for key in (*POLICY, *FOUND)}
        save_arrays(self._path(folder, name), KIND, {"choice": self.choice, **own, **tables}, compress=False)
        return None, []

    def read_mirror(self, inbox: Inbox, folder: str, name: str, kept: list[str]) -> tuple[None, Messages]:
        """Read what `write_mirror` wrote; send the values."""
        arrays = load_arrays(self._path(folder, name), KIND)
        self.begin([])
        for key in POLICY:
            setattr(self, key, arrays[key].reshape(getattr(self, key).shape))
        for key in FOUND:
            setattr(self, key, arrays[key])
        self.soft[self.own] = arrays["soft"]
        return self.read(inbox, folder, name, kept)


def build_shard(model: ShardedCMDP, threads: int, number: int) -> MirrorShard:
    """A block on a worker, whose process may use at most this many threads."""
    use_at_most(threads)
    return MirrorShard(model, number)
