"""cmdpkit: constrained Markov decision processes, solved with a proof.

    maximise a long-run reward (or minimise a cost) while long-run costs stay within limits

One sign convention holds inside the package, that of the paper: minimise V_0(π) subject to V_i(π) ≤ 0. Users state
rewards, costs and limits in any sense and unit; model/ converts them once, and results are converted back.

Glossary (the paper's letter, the word used for it in code):
    π  policy                 π(a|s), an (S, A) table; kept as log-probabilities
    ρ  initial                distribution of the first state
    γ  gamma                  discount factor
    d  occupancy              discounted visitation distribution of pairs (s, a)
    V_i, Q_i                  state and action values of cost i; V_i(ρ) is "the value"
    λ  multipliers, lam       shadow prices of the limits, ≥ 0 (Equal, Between: of either sign)
    η′ eta_dual               dual step
    η/(1 − γ)  step           effective policy step: π is multiplied by exp(−step · Q̃)
    α  alpha                  weight of the KL divergence to the anchor policy
    t_k  inner_steps          natural-gradient steps per dual update
    ξ  slater_margin          margin by which all limits can be met at once
    G(λ)  bound               min of the Lagrangian over all policies: no feasible policy is better
    y  infeasibility          Farkas vector: Σ y_i V_i(π) > 0 for every policy

Names are imported on first use, which keeps `import cmdpkit` and `cmdpkit --help` fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cmdpkit import cluster as cluster
    from cmdpkit import envs as envs
    from cmdpkit import problems as problems
    from cmdpkit import rules as rules
    from cmdpkit.certificates.certificate import Certificate as Certificate
    from cmdpkit.certificates.prover import certify as certify
    from cmdpkit.certificates.rollouts import SimulationCertificate as SimulationCertificate
    from cmdpkit.certificates.rollouts import certify_by_simulation as certify_by_simulation
    from cmdpkit.evaluation import Evaluation as Evaluation
    from cmdpkit.evaluation import evaluate as evaluate
    from cmdpkit.evaluation.average import long_run_averages as long_run_averages
    from cmdpkit.exact.slater import slater_margin as slater_margin
    from cmdpkit.insight.compare import compare as compare
    from cmdpkit.insight.curves import Frontier as Frontier
    from cmdpkit.insight.curves import Surface as Surface
    from cmdpkit.insight.diagnose import Diagnosis as Diagnosis
    from cmdpkit.insight.diagnose import diagnose as diagnose
    from cmdpkit.insight.frontier import frontier as frontier
    from cmdpkit.insight.league import Comparison as Comparison
    from cmdpkit.insight.optimum import SimulatedBound as SimulatedBound
    from cmdpkit.insight.optimum import bound_by_simulation as bound_by_simulation
    from cmdpkit.insight.report import write_report as write_report
    from cmdpkit.insight.sweep import Sweep as Sweep
    from cmdpkit.insight.sweep import sweep as sweep
    from cmdpkit.learners.neural.policy import NeuralPolicy as NeuralPolicy
    from cmdpkit.model import CMDP as CMDP
    from cmdpkit.model import AtLeast as AtLeast
    from cmdpkit.model import AtMost as AtMost
    from cmdpkit.model import Between as Between
    from cmdpkit.model import Block as Block
    from cmdpkit.model import Equal as Equal
    from cmdpkit.model import ShardedCMDP as ShardedCMDP
    from cmdpkit.policy import MixturePolicy as MixturePolicy
    from cmdpkit.policy import ShardedPolicy as ShardedPolicy
    from cmdpkit.policy import StagedPolicy as StagedPolicy
    from cmdpkit.policy import TabularPolicy as TabularPolicy
    from cmdpkit.run.history import History as History
    from cmdpkit.run.result import Result as Result
    from cmdpkit.run.result import TrainingFailed as TrainingFailed
    from cmdpkit.run.result import TrainingResult as TrainingResult
    from cmdpkit.run.status import Status as Status
    from cmdpkit.settings import Sampling as Sampling
    from cmdpkit.simulators import Simulator as Simulator
    from cmdpkit.simulators.gymnasium import from_gymnasium as from_gymnasium
    from cmdpkit.solver import solve as solve
    from cmdpkit.training import certify_on_episodes as certify_on_episodes
    from cmdpkit.training import train as train

__version__ = "0.1.0"

_HOME = {
    "AtLeast": "model",
    "AtMost": "model",
    "Between": "model",
    "Block": "model",
    "CMDP": "model",
    "ShardedCMDP": "model",
    "ShardedPolicy": "policy",
    "SimulatedBound": "insight.optimum",
    "SimulationCertificate": "certificates.rollouts",
    "Simulator": "simulators",
    "Equal": "model",
    "Certificate": "certificates.certificate",
    "Comparison": "insight.league",
    "Diagnosis": "insight.diagnose",
    "Evaluation": "evaluation",
    "Frontier": "insight.curves",
    "History": "run.history",
    "MixturePolicy": "policy",
    "NeuralPolicy": "learners.neural.policy",
    "Result": "run.result",
    "Sampling": "settings",
    "StagedPolicy": "policy",
    "Status": "run.status",
    "Surface": "insight.curves",
    "Sweep": "insight.sweep",
    "TabularPolicy": "policy",
    "TrainingFailed": "run.result",
    "TrainingResult": "run.result",
    "bound_by_simulation": "insight.optimum",
    "cluster": "cluster",
    "certify": "certificates.prover",
    "certify_by_simulation": "certificates.rollouts",
    "certify_on_episodes": "training",
    "compare": "insight.compare",
    "diagnose": "insight.diagnose",
    "envs": "envs",
    "evaluate": "evaluation",
    "frontier": "insight.frontier",
    "long_run_averages": "evaluation.average",
    "from_gymnasium": "simulators.gymnasium",
    "problems": "problems",
    "rules": "rules",
    "slater_margin": "exact.slater",
    "solve": "solver",
    "sweep": "insight.sweep",
    "train": "training",
    "write_report": "insight.report",
}

__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'cmdpkit' has no attribute {name!r}")
    module = import_module(f"cmdpkit.{_HOME[name]}")
    value = module if name == _HOME[name] else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
