"""What was learned from samples, judged: exactly where the model is known, by fresh rollouts where it is not."""

from __future__ import annotations

from typing import Any

import numpy as np

from cmdpkit.certificates.certificate import Certificate
from cmdpkit.certificates.checker import certificate_of
from cmdpkit.certificates.prover import certify
from cmdpkit.certificates.rollouts import SimulationCertificate, certify_by_simulation
from cmdpkit.evaluation.patience import Hurry, Stopped, until
from cmdpkit.model import CMDP
from cmdpkit.run.budget import Budget
from cmdpkit.run.result import Result
from cmdpkit.run.sampled import Learned
from cmdpkit.run.status import Status
from cmdpkit.settings import Sampling
from cmdpkit.simulators import Simulator

LEARNED = "All iterations are done; the certificate says how good the policy is. More iterations or rollouts help."
NO_BOUNDS = "There is no certificate, because the simulator has no bounds; the values are estimates from the run."
NO_MIXING = (
    "There is no certificate, because samples do not bound the mixing time; state a bound as "
    "Sampling(mixing=...). The values are estimates from the run."
)
NO_TIME = "There is no certificate, because it was interrupted; the values are estimates from the run."
NO_BOUND = "There is no bound on the optimum, because time was up."
NOT_ONE = "The budget of transitions is too small for a single iteration; the policy is the initial one."

GRACE = 0.7
"""Seconds that the certificates of a run whose time is up may still take."""


def judged(
    model: CMDP | Simulator, method: str, sampling: Sampling, learned: Learned, budget: Budget, seed: int
) -> Result:
    """The result of a sampled run: certificates for the policy and for the mixture of the iterates."""
    status, mixture = learned.status, learned.mixture
    certificate: Any
    average: Any
    missing = ""
    if isinstance(model, CMDP):
        certificate, average, missing = _certified(model, learned)
        infeasible = certificate.infeasibility is not None
        status = Status.INFEASIBLE if infeasible else status
        multipliers = certificate.multipliers
    else:
        certificate = _judge(model, learned.policy, sampling, seed)
        average = _judge(model, mixture, sampling, seed)
        multipliers = learned.multipliers
        if certificate is None:
            unproved = NO_TIME if _can_judge(model, sampling) else NO_MIXING
            missing = f" {NO_BOUNDS if model.bounds is None else unproved}"
    objective, values = (
        (certificate.objective, certificate.constraint_values) if certificate is not None else _estimates(learned)
    )
    return Result(
        status=status,
        policy=learned.policy,
        objective=objective,
        constraint_values=values,
        violations=model.misses(values),
        multipliers=multipliers,
        certificate=certificate,
        history=learned.history,
        iterations=learned.iterations,
        time=budget.elapsed,
        method=method,
        message=_advice(learned, status) + missing,
        model=model,
        last_policy=learned.last,
        average_policy=mixture,
        average_certificate=average,
        samples=learned.samples,
    )


def _certified(cmdp: CMDP, learned: Learned) -> tuple[Certificate, Certificate | None, str]:
    """Certificates of the policy and of the mixture, and a note if there was no time for all of it."""
    proof = None
    try:
        with until(Hurry(GRACE)):
            proof = certify(cmdp, learned.policy)
            multipliers = proof.multipliers if proof.infeasibility is None else None
            return proof, certify(cmdp, learned.mixture, multipliers), ""
    except Stopped:
        proof = proof or certificate_of(cmdp, learned.policy, np.zeros(cmdp.num_rows), -np.inf)
        return proof, None, f" {NO_BOUND}" if np.isinf(proof.bound) else ""


def _advice(learned: Learned, status: Status) -> str:
    if status is Status.SAMPLE_LIMIT and not learned.iterations:
        return NOT_ONE
    return LEARNED if status is Status.ITERATION_LIMIT else status.advice


def _judge(simulator: Simulator, policy: Any, sampling: Sampling, seed: int) -> SimulationCertificate | None:
    if simulator.bounds is None or not _can_judge(simulator, sampling):
        return None
    try:
        return certify_by_simulation(
            simulator, policy, sampling.confidence, sampling.certificate_rollouts, seed=seed, mixing=sampling.mixing
        )
    except KeyboardInterrupt:  # a second Ctrl-C: the learned policy must not be lost
        return None


def _can_judge(simulator: Simulator, sampling: Sampling) -> bool:
    """Rollouts prove an average only if a bound on the mixing time is stated."""
    return simulator.criterion != "average" or sampling.mixing is not None


def _estimates(learned: Learned) -> tuple[float, Any]:
    """The estimates of the run for the policy, where there is no certificate."""
    if not learned.iterations:
        return float("nan"), np.full(learned.multipliers.shape, np.nan)
    return float(learned.shares @ learned.history["objective"]), learned.shares @ learned.history["constraint_values"]
