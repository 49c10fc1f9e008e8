"""The judge: what the package claims about a model, compared with exact arithmetic.

It trusts nothing but `fuzz.exact`. A lower bound with multipliers λ must not exceed min_π V_0 + Σ λ_i V_i; a policy's
V_0..V_m must lie within the reported errors; a Farkas vector y must have min_π Σ y_i V_i at least the reported margin,
and that margin must be positive. Together they decide OPTIMAL and INFEASIBLE by weak duality.

What is compared: a policy that is played with its stored probabilities divided by their exact sum, the weights of a
mixture as they are stored, rows of P and the initial distribution as they are given, and limits per step with the exact
1 − γ.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from fuzz.averages import ExactAverages
from fuzz.exact import ExactModel

REPORTED = 1 + Fraction(1, 2**50)
"""Gap, violation and accuracy are rounded when they are reported: by this factor they may be too small."""

LAST = Fraction(1, 2**1070)
"""And near the smallest double by this much; bounds and margins have no such allowance."""

DIGITS = Fraction(1, 10**9)
"""Errors of reported values beyond this part of the largest conceivable value are wrong, whatever was claimed."""

FAINT = Fraction(1, 10**300)
"""Numbers below this have few digits or none in double precision; errors of this size are no errors."""

SLATER = Fraction(1, 10**6)
"""Errors of a Slater margin beyond this part of the largest conceivable value are wrong answers."""

KINDS = (
    "wrong-answer",
    "invalid-bound",
    "contradiction",
    "exception",
    "warning",
    "timeout",
    "unjudged",
    "unproved",
    "several",
)

HARMLESS = ("unproved", "several")
"""No proof; and none because long-run averages depend on the class in which the start ends."""


class Finding(NamedTuple):
    kind: str
    detail: str


def exact_model(cmdp: Any) -> Any:
    """The model in exact arithmetic."""
    return ExactAverages(cmdp) if cmdp.criterion == "average" else ExactModel(cmdp)


class Judge:
    """Judges all claims about one model, and remembers the policies that it has seen."""

    def __init__(self, cmdp: Any) -> None:
        self.cmdp = cmdp
        self.model = exact_model(cmdp)
        self.sides = [1 if hasattr(c, "sign") else 2 for c in cmdp.constraints]  # rows of every limit
        self.several = cmdp.criterion == "average" and not self.model.is_connected()
        # `accuracy` says how exact averages are: less where rows do not sum to one, or parts are hardly ever left
        self.digits = DIGITS if cmdp.criterion != "average" else DIGITS + self.model.condition()
        self.feasible: tuple[str, list[Fraction]] | None = None  # a policy that meets every limit exactly

    def result(self, result: Any, tol: float, label: str) -> list[Finding]:
        """Everything that a `Result` claims."""
        certificate, status = result.certificate, result.status.name
        values = self.policy(result.policy)
        findings = self.certificate(certificate, values, label)
        if status == "OPTIMAL":
            if not (certificate.gap <= tol and certificate.violation <= tol):
                findings.append(Finding("wrong-answer", "OPTIMAL, but the certificate does not prove it"))
        elif status == "INFEASIBLE":
            if certificate.infeasibility is None:
                findings.append(Finding("wrong-answer", "INFEASIBLE without a proof"))
        else:
            detail = f"{status}, gap {certificate.gap:.1e}, violation {certificate.violation:.1e}"
            detail += f" (exactly {float(max(self._excess(values), 0)):.1e})"
            findings.append(Finding("several" if status == "SEVERAL_CLASSES" else "unproved", detail))
            if status == "SEVERAL_CLASSES" and not self.several:
                findings.append(Finding("wrong-answer", "SEVERAL_CLASSES, but there is one"))
        return findings

    def policy(self, policy: Any) -> list[Fraction]:
        """V_0..V_m of a policy or of a mixture."""
        if hasattr(policy, "policies"):
            parts = [self.model.values(part.probabilities) for part in policy.policies]
            weights = [Fraction(float(w)) for w in policy.weights]
            mixed = [sum(w * x for w, x in zip(weights, column, strict=True)) for column in zip(*parts, strict=True)]
            # V_i is affine in the occupancy: offsets count as often as the weights sum to
            rest = 1 - sum(weights)
            return [v - rest * o for v, o in zip(mixed, self.model.offsets, strict=True)]
        values: list[Fraction] = self.model.values(policy.probabilities)
        return values

    def certificate(self, certificate: Any, values: list[Fraction], label: str) -> list[Finding]:
        """Everything that a certificate claims about a policy with these exact values."""
        findings = self._reported_values(certificate, values)
        excess = self._excess(values)
        if max(excess, 0) > _exact(certificate.violation) * REPORTED + LAST:
            findings.append(_wrong("violation", certificate.violation, excess))
        if excess <= 0:
            self.feasible = self.feasible or (label, values)
        if certificate.infeasibility is not None:
            findings += self._refutation(certificate)
        else:
            findings += self._bound(certificate, values)
        return findings

    def _excess(self, values: list[Fraction]) -> Fraction:
        """The largest violation relative to max(1, |limit|); negative inside all limits."""
        return max((v / s for v, s in zip(values[1:], self.model.scales, strict=True)), default=Fraction(0))

    def _reported_values(self, certificate: Any, values: list[Fraction]) -> list[Finding]:
        """Objective and constraint values: within `accuracy`, and with the digits that double precision allows."""
        if not np.isfinite([certificate.objective, *certificate.constraint_values]).all():
            return [Finding("wrong-answer", "the values of the policy are not finite")]
        signs = [-1 if self.cmdp.maximise else 1, *(int(c.sign) for c in self.cmdp.rows)]
        stated = [v for v, sides in zip(certificate.constraint_values, self.sides, strict=True) for _ in range(sides)]
        reported = [Fraction(float(v)) for v in (certificate.objective, *stated)]
        scales = [max(Fraction(1), abs(reported[0])), *self.model.scales]
        rows = zip(signs, reported, values, self.model.offsets, scales, self.model.sizes(), strict=True)
        findings = []
        for i, (sign, claim, value, offset, scale, size) in enumerate(rows):
            truth = sign * (value + offset)
            name, error = f"value {i}" if i else "objective", abs(claim - truth)
            if error > (_exact(certificate.accuracy) * REPORTED + LAST) * scale:
                detail = (
                    f"{name} {float(claim)!r}, exactly {float(truth)!r}: accuracy {certificate.accuracy:.2e} is wrong"
                )
                findings.append(Finding("wrong-answer", detail))
            elif error > self.digits * max(abs(truth), size - abs(offset)) + FAINT:
                findings.append(Finding("wrong-answer", f"{name} {float(claim)!r}, exactly {float(truth)!r}"))
        return findings

    def _bound(self, certificate: Any, values: list[Fraction]) -> list[Finding]:
        sense = -1 if self.cmdp.maximise else 1
        bound = sense * certificate.bound
        if np.isnan(bound) or bound == np.inf:
            return [Finding("invalid-bound", f"the bound is {certificate.bound}, without a proof of infeasibility")]
        if bound == -np.inf:
            return [] if certificate.gap == np.inf else [_wrong("gap", certificate.gap, Fraction(10**300))]
        findings = self.lower_bound(bound, [1.0, *self.row_prices(certificate.multipliers)])
        distance = abs(values[0] - Fraction(bound)) / max(Fraction(1), abs(Fraction(certificate.objective)))
        if distance > _exact(certificate.gap) * REPORTED + LAST:
            findings.append(_wrong("gap", certificate.gap, distance))
        return findings

    def row_prices(self, prices: Any) -> list[float]:
        """Prices of the rows: a limit from both sides has one price, positive where the upper end binds."""
        rows: list[float] = []
        for price, sides in zip(prices, self.sides, strict=True):
            rows += [float(price)] if sides == 1 else [max(float(price), 0.0), max(-float(price), 0.0)]
        return rows

    def lower_bound(self, bound: float, weights: Any) -> list[Finding]:
        """bound ≤ min_π Σ w_i V_i?"""
        if not np.isfinite(weights).all() or min(weights) < 0:
            return [Finding("invalid-bound", f"the multipliers {list(map(float, weights))} are not valid")]
        if bound == -np.inf:
            return []
        if not np.isfinite(bound):
            return [Finding("invalid-bound", f"the bound is {bound}")]
        truth = self.model.minimum(weights)
        if Fraction(float(bound)) <= truth:
            return []
        over = float(Fraction(float(bound)) - truth)
        return [Finding("invalid-bound", f"bound {float(bound)!r} exceeds the minimum {float(truth)!r} by {over:.2e}")]

    def _refutation(self, certificate: Any) -> list[Finding]:
        y, margin = np.array(self.row_prices(certificate.infeasibility)), certificate.infeasibility_margin
        if not (np.isfinite(y).all() and (y >= 0).all() and y.any()):
            return [Finding("invalid-bound", f"the Farkas vector {y.tolist()} is not valid")]
        if not margin > 0:
            return [Finding("invalid-bound", f"the margin {margin} of the Farkas proof is not positive")]
        truth = self.model.minimum([0.0, *y])
        if truth <= 0:
            detail = f"refuted with margin {margin:.3e}, but y = {y.tolist()} gives {float(truth)!r}"
            feasible = slater_bracket(self.model)[0] >= 0
            return [Finding("wrong-answer" if feasible else "invalid-bound", detail + "; feasible" * feasible)]
        if Fraction(float(margin)) > truth:
            return [Finding("invalid-bound", f"Farkas margin {margin!r}, exactly {float(truth)!r}")]
        if self.feasible:
            return [Finding("contradiction", f"refuted, but {self.feasible[0]} is feasible")]
        return []

    def slater(self, margin: float) -> list[Finding]:
        """max_π min_i −V_i, to `SLATER` of the largest conceivable value and with the right sign."""
        if not self.cmdp.num_constraints:
            return [] if margin == np.inf else [_wrong("Slater margin", margin, Fraction(10**300))]
        if not np.isfinite(margin):
            return [Finding("wrong-answer", f"the Slater margin is {margin}")]
        low, high = slater_bracket(self.model)
        scale = max(self.model.sizes()[1:])
        claim = Fraction(float(margin))
        off = max(low - claim, claim - high)
        wrong_sign = (claim > 0 and high < 0) or (claim < 0 and low > 0)
        if off > SLATER * scale + FAINT or (wrong_sign and off > DIGITS * scale + FAINT):
            detail = f"Slater margin {margin!r}, exactly in [{float(low)!r}, {float(high)!r}]"
            if self.several and claim <= high:  # what can be had by every part alone is all that is promised
                return [Finding("several", detail)]
            return [Finding("wrong-answer", detail + (": wrong sign" if wrong_sign else ""))]
        return []


def slater_bracket(model: Any, rounds: int = 60) -> tuple[Fraction, Fraction]:
    """Rigorous bounds on max_π min_i −V_i: the dual from exact minima, the primal from mixtures of exact points.

    Linear programs in double precision only propose weights; a poor proposal makes the bracket wider, never wrong.
    """
    from scipy.optimize import linprog

    m, scale = len(model.costs) - 1, max(model.sizes()[1:])
    if scale == 0:
        return Fraction(0), Fraction(0)
    points: list[list[Fraction]] = []
    low, high = -10 * scale, 10 * scale  # of min_π max_i V_i
    y = np.full(m, 1.0 / m)
    for _ in range(rounds):
        exact_y = [Fraction(float(w)) for w in y]
        low = max(low, model.minimum([0.0, *y]) / sum(exact_y))
        points.append(model.values(model.minimiser([0.0, *y]))[1:])
        table = np.array([[float(v / scale) for v in point] for point in points])
        # min t with Σ_k w_k V_ki ≤ t for all i; its prices are the next y
        rows = np.hstack([table.T, -np.ones((m, 1))])
        answer = linprog(
            np.append(np.zeros(len(points)), 1.0),
            A_ub=rows,
            b_ub=np.zeros(m),
            A_eq=[[1.0] * len(points) + [0.0]],
            b_eq=[1.0],
            bounds=[(0, None)] * len(points) + [(None, None)],
        )
        if answer.status != 0:
            break
        mix = [Fraction(float(max(w, 0.0))) for w in answer.x[:-1]]
        attained = [sum(w * p[i] for w, p in zip(mix, points, strict=True)) / sum(mix) for i in range(m)]
        high = min(high, max(attained))
        y = np.maximum(-answer.ineqlin.marginals, 0.0)
        if high - low <= DIGITS * scale or not y.any():
            break
    return -high, -low


def _exact(claim: float) -> Fraction:
    """A reported error; infinity claims nothing, and is larger than anything."""
    return Fraction(float(claim)) if np.isfinite(claim) else Fraction(10**4000 if claim > 0 else -1)


def _wrong(name: str, claim: float, truth: Fraction) -> Finding:
    return Finding("wrong-answer", f"{name} {claim!r}, exactly {float(min(truth, Fraction(10**300)))!r}")
