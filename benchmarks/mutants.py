"""How much the tests notice: `python benchmarks/mutants.py` (make mutants).

Each mutant is one mistake in one file of the package: a flipped sign, a dropped term, a random stream that is used
twice, a check that is left out. The package is copied to a temporary folder, the mistake is made there, and the tests
that should notice it are run against the copy. A test must fail; a mistake that no test notices is `missed`.

A mutant names its text exactly, and is refused when the text does not occur exactly once: after a change of the source
it must be looked at again. tests/test_mutants.py checks that for all of them. Equivalent mutants change nothing that
anybody could observe; they are listed with the reason, and not counted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "cmdpkit"
SECONDS = 600
"""A run of the tests that takes longer hangs, which nobody would overlook: the mutant counts as caught."""


class Mutant(NamedTuple):
    """One mistake. `tests` are files, or single tests of files that take long."""

    file: str  # in src/cmdpkit
    old: str  # occurs exactly once
    new: str
    tests: tuple[str, ...]
    wrong: str  # what is wrong, in a line
    equivalent: str = ""  # why nobody can notice it, if that is so

    @property
    def room(self) -> str:
        parts = self.file.removesuffix(".py").split("/")
        return "/".join(parts[:2]) if parts[:2] == ["learners", "neural"] else parts[0]


def of(file: str, tests: str, *mistakes: tuple[str, ...]) -> list[Mutant]:
    """Mutants of one file; tests as in "rules driver::test_resume": tests/test_rules.py and one test of another."""
    paths = tuple(
        f"tests/test_{name.replace('::', '.py::', 1) if '::' in name else name + '.py'}" for name in tests.split()
    )
    return [Mutant(file, old, new, paths, *words) for old, new, *words in mistakes]


def find(mutant: Mutant, package: Path = PACKAGE) -> str:
    """The mutated text of its file; a ValueError when the old text does not occur exactly once."""
    text = (package / mutant.file).read_text("utf-8")
    count = text.count(mutant.old)
    if count != 1:
        raise ValueError(f"{mutant.file}: {mutant.old!r} occurs {count} times; a mutant needs a text that occurs once")
    return text.replace(mutant.old, mutant.new)


def judge(mutant: Mutant) -> tuple[str, str]:
    """("caught", "missed" or "error", last line of pytest), from the tests run against a mutated copy."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source)  # with times, so that compiled kernels need not be compiled again
        (source / "cmdpkit" / mutant.file).write_text(find(mutant), "utf-8")
        try:
            run = _run(source, mutant.tests, SECONDS)
        except subprocess.TimeoutExpired:
            return "caught", f"the tests hang for {SECONDS} seconds"
    lines = [
        line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))
    ] or run.stdout.splitlines()
    # 0: all tests passed; 1: some failed; others: pytest could not do its work
    return {0: "missed", 1: "caught"}.get(run.returncode, "error"), (lines or [run.stderr[-200:]])[0]


def _run(source: Path, tests: Iterable[str], seconds: float | None = None) -> subprocess.CompletedProcess[str]:
    """The tests, run against the package in `source`."""
    quiet = ("-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist")
    with tempfile.TemporaryDirectory() as scratch:  # examples of failures must not reach the real store
        return subprocess.run(
            [sys.executable, "-m", "pytest", *quiet, *tests],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(source), "HYPOTHESIS_STORAGE_DIRECTORY": scratch},
            capture_output=True,
            text=True,
            timeout=seconds,
        )


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the tests against mutants of the package.")
    parser.add_argument("--room", help="only mutants of this room: rules, learners/neural, ...")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="only these mutants, by number")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default: 2)")
    parser.add_argument("--trust", action="store_true", help="do not check first that the tests pass without mutants")
    parser.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    chosen = parser.parse_args(arguments)
    mutants = list(enumerate(MUTANTS, start=1))
    if chosen.room:
        mutants = [(n, mutant) for n, mutant in mutants if mutant.room == chosen.room]
    if chosen.only:
        mutants = [(n, mutant) for n, mutant in mutants if n in chosen.only]
    for _, mutant in mutants:
        find(mutant)
    if chosen.list:
        for n, mutant in mutants:
            print(f"{n:>4}  {mutant.file:<34} {mutant.wrong}{'  (equivalent)' if mutant.equivalent else ''}")
        return 0
    real = [(n, mutant) for n, mutant in mutants if not mutant.equivalent]
    if not chosen.trust and (
        code := _run(PACKAGE.parent, sorted({path for _, m in real for path in m.tests})).returncode
    ):
        print(
            f"the tests do not pass without any mutant (exit code {code}), so that they cannot tell one",
            file=sys.stderr,
        )
        return 2
    verdicts: Counter[tuple[str, str]] = Counter()
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for (n, mutant), (verdict, line) in zip(real, pool.map(judge, (m for _, m in real)), strict=True):
            verdicts[mutant.room, verdict] += 1
            print(f"{verdict:<7} {n:>4}  {mutant.file:<34} {mutant.wrong}\n{'':14}{line[:140]}", flush=True)
    _summary(verdicts)
    for n, mutant in mutants:
        if mutant.equivalent:
            print(f"equivalent {n}  {mutant.file}: {mutant.wrong}. {mutant.equivalent}")
    return 0 if all(verdict == "caught" for _, verdict in verdicts) else 1


def _summary(verdicts: Counter[tuple[str, str]]) -> None:
    print(f"\n{'room':<18}{'caught':>8}{'missed':>8}{'error':>8}")
    for room in dict.fromkeys(room for room, _ in verdicts):
        print(f"{room:<18}" + "".join(f"{verdicts[room, verdict]:>8}" for verdict in ("caught", "missed", "error")))
    total = verdicts.total()
    caught = sum(count for (_, verdict), count in verdicts.items() if verdict == "caught")
    print(f"\n{caught} of {total} mutants are caught ({100.0 * caught / max(1, total):.1f} %)\n")


# -- the mutants -------------------------------------------------------------------------------------------------------

MUTANTS: list[Mutant] = [
    *of(
        "checks.py",
        "model files",
        ("off[worst] > ROW_SUM_TOLERANCE", "off[worst] > 1e3 * ROW_SUM_TOLERANCE", "rows that sum to 1 ± 1e-6 pass"),
        ("0.0 <= value < 1.0", "0.0 <= value <= 1.0", "gamma = 1 passes"),
        ("| (entries < 0.0)", "| (entries < -1.0)", "negative probabilities pass"),
        ("if gamma * sums.max() >= 1.0", "if gamma * sums.max() > 2.0", "values that are infinite pass"),
        ('(transitions.indptr, k, "right")) - 1', '(transitions.indptr, k, "right"))', "the wrong row is blamed"),
        ('np.array(array, dtype=np.float64, order="C")', "np.asarray(array, float)", "the user's array is not copied"),
        ("if value < least:", "if value < least - 1:", "a count may be one too small"),
        ("code.update(table.tobytes())", "code.update(table[:1].tobytes())", "fingerprints see only the first row"),
        ('{table.shape} ".encode', '".encode', "fingerprints do not see the shape"),
        (" or ((lam < 0.0) & ~np.asarray(signed)).any()", "", "negative multipliers pass"),
    ),
    *of(
        "checks.py",
        "travel",
        ("        value.flags.writeable = False", "        value.flags.writeable = True", "copies are not frozen"),
    ),
    *of(
        "files.py",
        "files policy",
        ("allow_pickle=False", "allow_pickle=True", "pickles are executed"),
        ("if found != kind:", "if found is None:", "a file of another kind passes"),
        ('header.get("kind") != kind', '"kind" not in header', "tensors of another kind pass"),
        ("os.unlink(temporary)", "pass", "half a file is left after a failure"),
        ("writer.writerow(columns)", "writer.writerow(sorted(columns))", "names stand above other columns"),
        ("0o666 & ~_umask()", "0o600", "files are private"),
        ("if not isinstance(value, np.ndarray)), None)", "if value is None), None)", "entries that are bytes pass"),
    ),
    *of(
        "options.py",
        "options",
        ("if number <= 1.0:", "if number < 1.0:", "a growth of 1 passes"),
        ("0.0 <= number <= 1.0", "0.0 <= number < 1.0", "the fraction 1 is refused"),
        ("(not zero and (table == 0.0).any())", "False", "steps of 0 pass"),
        (
            "for name, value in given.items() if value is not None}\n    return settings",
            "for name, value in given.items()}\n    return settings",
            "None is not the default",
        ),
        ("math.isnan(value) or value < 0.0", "math.isnan(value)", "a negative cap passes"),
        ("table.shape in ((), (constraints,))", "table.ndim <= 1", "too many numbers for the constraints pass"),
        (
            "getattr(plain, name) for name, value in given.items() if value is not None}",
            "value for name, value in given.items()}",
            "a rule keeps what was not checked",
        ),
    ),
    *of(
        "model/problem.py",
        "evaluation model theory",
        ("np.minimum(1.0, self.spans)", "np.maximum(1.0, self.spans)", "small costs are solved roughly"),
        ("-1.0 if self.maximise else 1.0", "1.0 if self.maximise else -1.0", "rewards are minimised"),
        ("(share if c.per_step else 1.0)", "1.0", "a limit per step bounds the whole sum"),
        ("self.signs * (v + self.offsets)", "self.signs * v + self.offsets", "AtLeast's values get the wrong sign"),
        ("np.maximum(1.0, np.abs(self.limits))", "np.abs(self.limits)", "violations are relative to tiny limits"),
    ),
    *of(
        "model/problem.py",
        "equal",
        ("(share if self.objective_per_step else 1.0)", "1.0", "an objective per step is the whole sum"),
        ("values - high, low - values", "values - high, 0.0 * low", "violations of AtLeast are not seen"),
        ("net[..., self._both] -= prices", "net[..., self._both] += prices", "the prices of two sides are added"),
        (
            "np.maximum(-prices[self._both], 0.0)",
            "np.maximum(prices[self._both], 0.0)",
            "signed prices lose their sign",
        ),
        ("np.maximum.reduceat(excess, self._first)", "excess[self._first]", "a value below its range is no violation"),
    ),
    *of(
        "model/limits.py",
        "equal",
        ("((AtMost, high), (AtLeast, low))", "((AtMost, low), (AtLeast, high))", "the ends of Between are exchanged"),
        ("min(high - value, value - low)", "high - value", "a slack sees the upper end only"),
        ("if low > high:", "if False:", "ends in the wrong order pass"),
    ),
    *of(
        "model/limits.py",
        "model evaluation",
        ("    sign = -1.0", "    sign = 1.0", "AtLeast is AtMost"),
        ("if names.count(n) > 1", "if names.count(n) > 2", "a name may be used twice"),
    ),
    *of(
        "model/variants.py",
        "model theory",
        ("self.limits - self.signs * margins", "self.limits - margins", "AtLeast is loosened, not tightened"),
    ),
    *of(
        "model/cmdp.py",
        "model theory",
        ("np.abs(self.limits) / LARGEST_VALUE", "0.0 * np.abs(self.limits)", "limits that overflow pass"),
    ),
    *of(
        "model/storage.py",
        "model",
        ("cmdp.stated(cmdp.signs) < 0", "cmdp.stated(cmdp.signs) > 0", "files swap AtMost and AtLeast"),
        ("[c.per_step for c in cmdp.constraints]", "[False for c in cmdp.constraints]", "files forget limits per step"),
    ),
    *of(
        "model/variants.py",
        "start",
        ("if objective is not None or kept !=", "if objective is not None and kept !=", "old costs of a new objective"),
        ("self.maximise if maximise is None else maximise", "self.maximise", "a new objective keeps the old sense"),
    ),
    *of(
        "exact/band.py",
        "frontier",
        ("self._bounds - np.einsum", "self._bounds + np.einsum", "bounds move the wrong way"),
        ("np.array(self.sums) + np.array(self.search.errors)", "np.array(self.sums)", "errors of columns do not count"),
    ),
    *of(
        "exact/tightest.py",
        "frontier",
        ("y[axis] = 1.0", "y[axis] = 0.0", "the proof that a limit is too tight lacks that limit"),
        ("sums[axis + 1], unit * sums[0]", "sums[axis + 1], sums[0]", "limits per step are read as sums"),
    ),
    *of(
        "evaluation/gain_bounds.py",
        "average_models::test_values_of_policies_lie_within_their_errors",
        ("error = rounding * size + terms * TINY", "error = 0.0 * size", "averages have no rounding errors"),
        ("* EPS + row_slack(cmdp)", "* EPS", "averages take rows to sum to one"),
        (
            "1.01 * np.maximum(high - value, value - low)",
            "0.0 * np.maximum(high - value, value - low)",
            "averages are exact",
        ),
    ),
    *of(
        "evaluation/gain_bounds.py",
        "average_samples::test_the_bound_of_chains_by_hand "
        "average_samples::test_the_bound_is_nearly_attained "
        "average_samples::test_moves_that_rounding_hides_are_not_proved",
        (
            "float(steps.max()) + at_first",
            "float(steps.mean()) + at_first",
            "rollouts miss the mean time, not the longest",
        ),
        ("+ at_first)", "+ 0.0 * at_first)", "the way to one of several classes does not count"),
        (
            "if not np.array_equal(np.sort(label[marks]), classes):",
            "if False:",
            "parts that are hardly left are classes",
        ),
        (" = np.ptp(bias[visited], axis=0)[some] / ", " = 0.5 * np.ptp(bias[visited], axis=0)[some] / ", "half a bias"),
        ("(spans + off).max(initial=0.0)", "(spans + off).min(initial=9.0)", "all costs forget as soon as one does"),
        ("marks = system.marks[visited[system.marks]]", "marks = system.marks", "what cannot be visited counts"),
    ),
    *of(
        "evaluation/gains.py",
        "average_models::test_gain_and_bias_by_every_solver "
        "average_models::test_a_state_that_is_seldom_visited_does_not_mark_the_cycles "
        "average_models::test_a_start_that_can_end_in_two_classes",
        ("more = until[k] / times[k]", "more = until[k]", "an average is the cost of a cycle"),
        ("visits[states] >= RARE * visits[often]", "visits[states] >= 0.0 * visits[often]", "rare states mark cycles"),
        ("scale = np.maximum(ends, 0.0) / per_class", "scale = 1.0 / per_class", "all classes are equally likely"),
    ),
    *of(
        "evaluation/average.py",
        "average",
        ("+= matrix[inside][:, outside].T @ visits", "+= 0.0", "what passes through transient states is lost"),
        ("weights[k] * stationary(", "stationary(", "classes are not weighted by how often they are reached"),
        ("closed[component[rows[leaves]]]", "closed[component[matrix.indices[leaves]]]", "closed classes are left"),
    ),
    *of(
        "evaluation/factors.py",
        "average",
        ("onward.sum() + left", "onward.sum() + 2.0 * left", "states are left twice"),
    ),
    *of(
        "evaluation/gains.py",
        "average",
        ("    least = 0.0\n", "    least = NEVER\n", "rare moves do not join classes"),
        ("if cmdp.states <= FEW_STATES:", "if False:", "differences lose the digits of rare moves"),
        ("initial @ gain\n", "initial @ bias\n", "averages at the start are lost beside the values"),
    ),
    *of(
        "evaluation/bounds.py",
        "average_models::test_bounds_are_valid_for_any_guess_and_weights",
        (
            "lowest = backup.lowest if everywhere(cmdp) else",
            "lowest = 0.5 * (backup.lowest + backup.highest) if everywhere(cmdp) else",
            "averages are bounded by the middle of Th - h",
        ),
    ),
    *of(
        "evaluation/gains.py",
        "average_models::test_values_and_advantages_fit_together",
        ("bias + (at_start - self.cmdp.initial @ bias)", "bias + at_start", "the start is worth more than its average"),
    ),
    *of(
        "evaluation/evaluate.py",
        "average_models::test_values_and_advantages_fit_together",
        ("q -= gain(cmdp, values)[:, None]", "q -= 0.0", "advantages include the average"),
    ),
    *of(
        "evaluation/stage_kernels.py",
        "horizon::test_one_sweep_gives_policy_values_and_bound",
        ("q = scale * cost[r] + discount * ahead", "q = cost[r] + discount * ahead", "stages weigh the same"),
        ("= scale * costs[i, shift + arg]", "= costs[i, shift + arg]", "values of stages weigh the same"),
        ("out[state, 3] += share * a3", "out[state, 3] += share * a2", "the fourth cost is the third"),
    ),
    *of(
        "exact/joined.py",
        "average_models::test_parts_that_limits_need_both_of",
        ("(1.0 - share) * occupancy + share * everywhere", "occupancy", "parts of a model are not joined"),
        ("classes.size == 1 and inside >=", "classes.size == 1 or inside >=", "an occupancy elsewhere is the policy's"),
    ),
    *of(
        "exact/errors.py",
        "frontier",
        ("1.01 * local * horizon + ", "1.01 * local + ", "errors of one step only"),
        ("state_values + visits @ change", "state_values", "a policy beside another has its sums"),
        ("off * (size.max(axis=0) + rounding)", "0.0", "errors of visits do not count"),
    ),
    *of(
        "cluster/pool.py",
        "cluster::test_answers_are_in_order cluster::test_an_error_names_its_block",
        ("waiting.popleft()", "waiting.pop()", "answers come in another order"),
        ("raise cause from None", "raise error", "errors of workers are Ray's own"),
    ),
    *of(
        "cluster/session.py",
        "cluster::test_a_private_cluster_is_private",
        ('"RAY_AUTH_MODE": "token"', '"RAY_AUTH_MODE": "disabled"', "a private cluster answers to everybody"),
        ('OR_OSX_CLUSTER": "0"', 'OR_OSX_CLUSTER": "1"', "a private cluster listens on all interfaces"),
    ),
    *of(
        "cluster/crew.py",
        "cluster::test_an_environment_that_fails_once_is_made_again",
        (
            "        except Exception:\n",
            "        except ZeroDivisionError:\n",
            "environments that fail are not made again",
        ),
    ),
    *of(
        "simulators/simulator.py",
        "statistics",
        ("(high - low) * length", "high - low", "the span of a sum is that of a step"),
    ),
    *of(
        "simulators/known_model.py",
        "criteria::test_intervals_cover_the_exact_values criteria::test_a_certain_cost_is_known_exactly",
        ("self.lows @ weights,", "0.0 * (self.lows @ weights),", "what quantities count from is forgotten"),
        (
            "(self.highs - self.lows) @ weights, np",
            "0.1 * (self.highs - self.lows) @ weights, np",
            "a narrow range",
        ),
        ("table[some] = each[some]", "table[:] = each", "a limit on one stage counts all of them"),
    ),
    *of(
        "learners/response.py",
        "adaptive growing_sampled::test_predictions_are_those_of_the_exact_learner_on_the_empirical_model",
        (
            "np.subtract(table, self._over(self._sum(self._pi * table)), out=out)",
            "out[...] = table",
            "the Fisher matrix is not centred",
        ),
    ),
    *of(
        "run/recorder.py",
        "growing_sampled::test_rollouts_give_a_table_with_the_visits_of_the_average",
        ("shares[k] * pairs.over(self.visits[k])", "shares[k]", "visits do not weigh the average"),
        ("np.arange(count) < count // 2, 0.0", "np.arange(count) < 0, 0.0", "the first policies are averaged, too"),
    ),
    *of(
        "insight/optimum.py",
        "optimum",
        ("residual.min() / (1.0", "residual.mean() / (1.0", "only the mean residual is bounded"),
        (
            "low, high = np.where(refuted, middle, low)",
            "low, high = np.where(refuted, high, low)",
            "bets prove too much",
        ),
    ),
    *of(
        "rules/growing_sampled.py",
        "growing_sampled",
        ("1.0 / max(view.noise(state.multipliers), 1e-300)", "np.inf", "noise does not hold the steps back"),
        ("eta_dual=factor * state.eta_dual", "eta_dual=state.eta_dual", "the dual step does not grow"),
    ),
    *of(
        "learners/sampled.py",
        "growing_sampled",
        ("pairs.sum(variance) / pairs.sum(np.ones(pairs.shape))", "pairs.sum(variance)", "variances are not averaged"),
        ("np.append(1.0, multipliers) ** 2", "np.append(1.0, multipliers)", "prices are not squared in the noise"),
    ),
    *of(
        "learners/estimators.py",
        "criteria::test_estimates_over_a_horizon_are_unbiased",
        ("None if horizon == self.simulator.ends_within else horizon", "horizon", "limits count in part on a horizon"),
    ),
    *of(
        "model/absorbing.py",
        "total::test_states_in_which_one_can_stay_are_named total::test_bounds_hold_in_exact_arithmetic "
        "total::test_degenerate_models",
        ("np.flatnonzero(remaining & (left <= 0))", "np.flatnonzero(remaining & (left <= 1))", "traps are overlooked"),
        ("weighted = initial * w", "weighted = initial + 0.0 * w", "the start is not weighted"),
        ("after = np.where(absorbed, 0.0, w)", "after = w.copy()", "the goal counts as a state like others"),
    ),
    *of(
        "model/stages.py",
        "horizon::test_large_horizons_are_solved_stage_by_stage horizon::test_bounds_hold_in_exact_arithmetic "
        "horizon_models::test_values_and_visits_are_those_of_the_stages horizon_models::test_wrong_stages_are_refused",
        ("factors = gamma * w[1:] / (beta * w[:-1])", "factors = w[1:] / (beta * w[:-1])", "the discount is forgotten"),
        ("slice((t + 1) * S, (t + 2) * S)", "slice(t * S, (t + 1) * S)", "a stage leads to itself"),
        (
            "matrices = tuple(known[id(m)] for m in given",
            "matrices = tuple(known[id(given[0])] for m in given",
            "all stages are like the first",
        ),
        ("np.repeat(w / w[0], pairs.states)", "np.repeat(w / w[-1], pairs.states)", "values are of another unit"),
    ),
    *of(
        "evaluation/stages.py",
        "horizon::test_large_horizons_are_solved_stage_by_stage",
        ("x[staged.end] += gamma * ended", "x[staged.end] += ended", "visits to the end are not discounted"),
        ("ahead *= stage.factor", "ahead *= 1.0", "values are of the wrong stage's unit"),
        (
            "rows.size > GATHER * own.count:\n            ahead",
            "rows.size < GATHER * own.count:\n            ahead",
            "all rows where few would do",
            "It is only slower: both ways give the same.",
        ),
    ),
    *of(
        "exact/conflict.py",
        "diagnose",
        ("weights, margin = proof", "_, margin = proof", "the conflict is not made smaller"),
        ("sign * proved, sign * attained", "proved, attained", "AtLeast is relaxed to the wrong sign"),
        (
            "create_decimal(Decimal(sign * value))",
            "create_decimal(Decimal(value))",
            "printed limits of AtLeast turn around",
        ),
    ),
    *of(
        "evaluation/rational.py",
        "rational",
        ("Fraction(min(int(least.min()), 0), 1 << self.shift)", "Fraction(0)", "a policy that is not best bounds all"),
        (
            "np.diag(sums << self.shift)",
            "np.diag(sums * 0 + 1 << (self.shift + played.shift))",
            "sums are not divided by",
        ),
        ("1 - gamma if row.per_step", "1 + gamma if row.per_step", "limits per step in a wrong unit"),
    ),
    *of(
        "evaluation/rational_averages.py",
        "rational",
        (
            "- self.ahead[rows]\n            matrix",
            "+ self.ahead[rows]\n            matrix",
            "a wrong sign in h",
        ),
        ("least = min(Fraction", "least = max(Fraction", "the bound of the worst state"),
        ("min(change), max(change)", "max(change), max(change)", "averages without their errors"),
    ),
    *of(
        "exact/simplex.py",
        "rational",
        ("basis[min(ratios)[2]]", "basis[max(ratios)[2]]", "the wrong variable leaves the basis"),
        ("excess == 0", "excess >= 0", "limits that cannot be met are met"),
    ),
    *of(
        "insight/curves.py",
        "frontier",
        ("(-upper, -lower) if cmdp.maximise", "(-lower, -upper) if cmdp.maximise", "bounds of a reward are swapped"),
    ),
    *of(
        "insight/line.py",
        "frontier",
        ("values[k] - values[flatter]", "values[flatter] - values[k]", "kinks at the wrong limits"),
        ("share * (xs[j + step] - xs[j])", "0.0 * (xs[j + step] - xs[j])", "ranges of prices end at points"),
        ("prices[at_x >= at_x.max() - slack].min()", "prices[at_x >= at_x.max() - slack].max()", "the tighter price"),
    ),
    *of(
        "insight/explorer/guard.py",
        "explorer",
        ("request.host not in hosts", "False", "any host name reaches the explorer"),
        ("origin is not None and origin not in origins", "False", "other pages command the explorer"),
        ('in ("cross-site", "same-site")', 'in ("same-site",)', "requests of other sites are answered"),
    ),
    *of(
        "insight/explorer/dials.py",
        "explorer",
        ("not self.low <= number <= self.high", "not self.low <= number", "numbers beyond a slider are accepted"),
        ("entries[place] = number", "entries[0] = number", "every entry of a list moves the first"),
    ),
    *of(
        "insight/explorer/answers.py",
        "explorer",
        ("self._newest[: kind + 1] != mine", "False", "a newer request does not cancel an older one"),
        ("mine = self._newest[: kind + 1]", "mine = self._newest[kind:]", "a curve cancels an answer"),
    ),
    *of(
        "insight/choices.py",
        "report",
        ("np.argsort(-self.visits.ravel()", "np.argsort(self.visits.ravel()", "the least visited states come first"),
        ("np.minimum.reduceat(place, first", "np.maximum.reduceat(place, first", "another action is called the best"),
    ),
    *of(
        "insight/report/page.py",
        "report",
        ('for bad in "<>&\\u2028\\u2029"', 'for bad in "&"', "a label ends the element that holds the data"),
    ),
    *of(
        "insight/trials.py",
        "compare",
        ("np.maximum((low - values)", "np.minimum((low - values)", "only limits missed on both sides count"),
        ('np.cumsum(history["inner_steps"])\n', 'history["inner_steps"]\n', "evaluations are not added up"),
        ('("tol", "sampling", "max_iterations")', '("tol", "sampling")', "iterations reach train by another name"),
    ),
    *of(
        "insight/league.py",
        "compare",
        (
            "int(outside[-1]) + 1 if outside.size",
            "int(outside[0]) + 1 if outside.size",
            "reached once counts as reached",
        ),
        ("0.5 + confidence / 2.0", "confidence", "intervals are one-sided"),
        ("self._score(mine, best) - self._score(first, best)", "self._score(mine, best)", "differences are not paired"),
        ("run.final_error > DISAGREEMENT * self.tol", "False", "wrong answers pass for proved ones"),
    ),
    *of(
        "drawing.py",
        "drawing",
        (
            "np.clip(np.asarray(low, dtype=float), least, most)",
            "np.asarray(low, dtype=float)",
            "bands leave what is possible",
        ),
        ("(known > high).any()", "False", "clipped curves do not say so"),
    ),
    *of(
        "insight/diagnose.py",
        "diagnose",
        ("limit=c.limit / float(unit)", "limit=c.limit", "units change the values and not the limits"),
        ("sizes[meant] = size", "sizes[0] = size", "units of the wrong limit"),
    ),
    *of(
        "exact/memory.py",
        "start",
        ("sums[rows[1:]] - search.cmdp.offsets", "sums[rows[1:]]", "old columns forget the limits"),
        ("sums[:, 1:] += search.cmdp.offsets", "sums[:, 1:] += 0.0", "old columns keep the old limits"),
        ("np.array_equal(cmdp.initial, old.initial)", "True", "old columns hold for another start"),
    ),
    *of(
        "run/start.py",
        "start",
        ("known.get(name, 0.0) for name", "0.0 for name", "multipliers are forgotten"),
        ("(1.0 - EXPLORE) * self.last.pi", "EXPLORE * self.last.pi", "the policy is forgotten"),
    ),
    *of(
        "policy/tabular.py",
        "policy",
        ('cumulative[-1], side="right"', 'cumulative[-1], side="left"', "an impossible action is drawn for 0"),
        (
            "np.flatnonzero(row)[-1])",
            "row.size - 1)",
            "an impossible action is drawn for almost 1",
            "A random number u ≤ 1 − 2⁻⁵³ makes u·c < c in floating point, so that the guard is never needed.",
        ),
        (
            "np.copyto(occupancy, fallback, where=~seen)",
            "np.copyto(occupancy, 1.0 / occupancy.shape[1], where=~seen)",
            "unvisited states forget their policy",
        ),
        ("log_weights - pairs.over(pairs.max(log_weights))", "log_weights - 0.0", "large weights overflow"),
        ("table - pairs.over(np.log(total))", "table + pairs.over(np.log(total))", "stored policies get wrong sums"),
    ),
    *of(
        "policy/mixture.py",
        "policy sampling::test_a_mixture_has_the_average_values sampling::test_bad_mixtures_are_refused",
        (
            "rng.choice(len(self.policies), p=self.weights)",
            "rng.choice(len(self.policies))",
            "mixtures are drawn evenly",
        ),
        ('for table in tables], arrays["weights"]', "for table in tables]", "files forget the weights of a mixture"),
    ),
    *of(
        "evaluation/backup.py",
        "evaluation",
        ("ahead *= cmdp.gamma", "ahead *= 1.0", "what lies ahead is not discounted"),
    ),
    *of(
        "evaluation/bounds.py",
        "bounds exact certificate",
        ("lowest - float(rounding[0])", "lowest", "the bound forgets the rounding of the backup"),
        ("slack = (cmdp.longest_row + cmdp.entry_error) * EPS", "slack = 0.0", "row sums are taken as exact"),
        (
            "down(least * up(g / down(1.0 - g)))",
            "least * g / (1.0 - g)",
            "the tail is rounded to nearest",
            "g is widened before, by more than these three roundings",
        ),
        ("g = up(cmdp.gamma * high)", "g = up(cmdp.gamma * low)", "the bound takes the row sum that flatters"),
        ("*(-offsets).tolist()", "*offsets.tolist()", "the limits enter with the wrong sign"),
        (
            "return _from_start(cmdp, weights, backup.values",
            "return _from_start(cmdp, weights, value",
            "the bound uses V, not TV",
        ),
        ("entry_error, sums.mass", "entry_error, 1.0", "the initial distribution is taken to sum to 1"),
        ("visits @ local + off", "local.max(axis=0) + off", "errors are not summed over the visits"),
        ("np.maximum(value - backup, 0.0)", "np.maximum(backup - value, 0.0)", "what is missing has the wrong sign"),
    ),
    *of(
        "evaluation/chain.py",
        "evaluation",
        ("(weights[taken], taken.as", "(np.sign(weights[taken]), taken.as", "sparse chains forget π"),
    ),
    *of(
        "evaluation/evaluate.py",
        "evaluation sampling::test_a_mixture_has_the_average_values",
        ("occupancy = cmdp.step_weight * ", "occupancy = ", "occupancies sum to 1/(1 − γ)"),
        (
            "zip(weights, parts, strict=True)",
            "zip([1 / len(parts)] * len(parts), parts, strict=True)",
            "mixtures are averaged evenly",
        ),
    ),
    *of(
        "evaluation/factors.py",
        "evaluation",
        ("pivots, b, trans=1)", "pivots, b, trans=0)", "occupancies solve the untransposed system"),
    ),
    *of(
        "evaluation/sweeps.py",
        "evaluation",
        ("factor * (high + low) / 2.0", "factor * (high - low) / 2.0", "sweeps end beside the middle"),
    ),
    *of(
        "evaluation/kernels.py",
        "exact",
        ("low = min(low, best - value[s])", "low = min(low, best)", "compiled backups report other extremes"),
        ("out[row, 3] = a3 - minus * v3", "out[row, 3] = a3", "compiled advantages of the third limit are values"),
        (
            "total[i] += visits[s] * table[arg, i]",
            "total[i] += table[arg, i]",
            "compiled greedy sums forget the visits",
        ),
        (
            "choice[s] = arg - row\n        x = visits[s]",
            "choice[s] = arg\n        x = visits[s]",
            "compiled greedy choices are rows, not actions",
        ),
    ),
    *of(
        "simulators/simulator.py",
        "statistics streams simulators",
        ("simulator.gamma**t * cost", "simulator.gamma ** (t + 1) * cost", "the first step is discounted"),
        ("(extra[before] if t > 0 or not pairs else 0.0)", "extra[before]", "a pair's first step pays the divergence"),
        ("values.T**2)", "np.abs(values.T))", "squares are not squared"),
        ("stream((*seed, number))", "stream(seed)", "every block of rollouts draws the same numbers"),
        (
            "LEARNING, JUDGING, STARTS = 1, 2, 3",
            "LEARNING, JUDGING, STARTS = 1, 1, 3",
            "policies are judged by numbers they learned from",
        ),
        ("(quantities < self._ends[:, :1]) | ", "", "quantities below their bounds pass"),
        ("steps[alive] > t", "steps[alive] >= t", "rollouts take a step too many"),
    ),
    *of(
        "simulators/simulator.py",
        "average_samples::test_intervals_cover_the_average average_samples::test_every_part_of_the_interval_by_hand "
        "average_samples::test_a_simulator_with_a_statement",
        ("bias * (high - low)", "0.0 * (high - low)", "what rollouts miss of an average is forgotten"),
        ("bias * (high - low)", "bias * np.ones_like(low)", "what rollouts miss forgets the range of a step"),
    ),
    *of(
        "simulators/known_model.py",
        "statistics streams simulators",
        (
            "keys = stream(seed).generate_state(counts.size, np.uint64)",
            "keys = stream(seed).generate_state(1, np.uint64).repeat(counts.size)",
            "every compiled block draws the same numbers",
        ),
        ("(now, self.gamma, -1) if pairs", "(now, 1.0, -1) if pairs", "what follows a pair is not discounted"),
        ("* (1 if pairs else 0)", "* 0", "first transitions of pairs are not counted"),
        (
            "digest(*self._matrix, self.quantities, self.cmdp.initial)",
            "digest(*self._matrix, self.cmdp.initial)",
            "a model with other costs is the same run",
        ),
    ),
    *of(
        "simulators/compiled.py",
        "simulators::test_rollouts_have_the_exact_mean_and_variance "
        "simulators::test_geometric_returns_from_the_start_are_unbiased statistics",
        ("uint64(done + c) * GOLDEN", "uint64(c) * GOLDEN", "eight rollouts are repeated over and over"),
        ("1 + int(np.log(u / discount_0)", "int(np.log(u / discount_0)", "geometric rollouts are a step too short"),
        ("sums[i] += returns[c, i]", "sums[i] += returns[0, i]", "only the first lane counts"),
    ),
    *of(
        "simulators/gymnasium.py",
        "simulators::test_frozen_lake_against_its_own_table",
        ("if int(s) in ended:", "if False:", "an episode goes on after its end"),
    ),
    *of(
        "exact/linprog.py",
        "exact solve::test_slater_margin_of_known_models",
        ("* scales[0] / scales[1:]\n", "* scales[1:] / scales[0]\n", "the LP's prices are in the wrong units"),
        ("0.0) / scales\n", "0.0) * scales\n", "the LP's Farkas weights are in the wrong units"),
    ),
    *of(
        "exact/slater.py",
        "exact solve::test_slater_margin_of_known_models",
        ("return 0.0 - found.upper", "return found.upper", "the Slater margin has the wrong sign"),
        ("np.append(2.0 * c, -t)", "np.append(c, -t)", "costs count once, and t twice"),
        (
            "up(total * (1.0 + slack)) if bound >= 0.0",
            "1.0 if bound >= 0.0",
            "weights are taken to sum to one",
            "they are divided by their sum, which leaves less than the rounding of the bound",
        ),
    ),
    *of(
        "exact/balance.py",
        "extremes",
        (
            "self.exponents[0] - self.exponents[1:]",
            "self.exponents[1:] - self.exponents[0]",
            "multipliers go the wrong way",
        ),
        ("_scaled(margin, common)", "margin", "the margin stays in even units"),
    ),
    *of(
        "exact/highs.py",
        "interrupts exact",
        ("if stop():\n", "if False:\n", "a large LP cannot be stopped"),
        (
            "answer.ineqlin.marginals if solved",
            "-answer.ineqlin.marginals if solved",
            "the LP's prices have the wrong sign",
        ),
    ),
    *of(
        "evaluation/patience.py",
        "interrupts",
        ("_STOP.reset(token)", "None", "a caller's stop is never forgotten"),
        ("_LATE.reset(token)", "None", "a caller's hurry is never forgotten"),
        ("now - self._since >= self._grace", "False", "no iteration ends early"),
    ),
    *of(
        "exact/least_squares.py",
        "exact",
        ("step = min(\n", "step = max(\n", "least squares step past the boundary"),
        (
            "slopes = matrix.T @ residual",
            "slopes = matrix.T @ target",
            "least squares do not see their residual",
        ),
    ),
    *of(
        "exact/local.py",
        "exact",
        ("self.view.values + change", "self.view.values - change", "the outlook predicts the opposite"),
        (
            "self._units, self._compiled = scales[0] / scales,",
            "self._units, self._compiled = scales / scales[0],",
            "prices are in the wrong units",
        ),
        (
            "flat[pairs.rows(choice)] += weight",
            "flat[pairs.rows(choice)] = weight",
            "a blend forgets equal actions",
        ),
    ),
    *of(
        "exact/least_squares.py",
        "exact",
        ("-center, center - cap", "-center, -center - cap", "the level point may exceed the cap"),
    ),
    *of(
        "exact/master.py",
        "exact",
        ("rows @ weights - self.relaxation", "rows @ weights", "a mixture within relaxed limits counts as outside"),
        (
            "_netted(np.maximum(-y[:m], 0.0)",
            "_netted(np.maximum(y[:m], 0.0)",
            "prices of the master have the wrong sign",
        ),
    ),
    *of(
        "exact/mdp.py",
        "certificate::test_oracle_equals_enumeration exact",
        ("values[1:] -= cmdp.offsets", "values[1:] += cmdp.offsets", "the oracle's values forget the limits"),
        (
            "bound = max(bound, bound_from_backup(cmdp, weights, value, backup))",
            "bound = max(bound, float(cmdp.initial @ backup.values) - offset)",
            "the oracle's bound is an estimate",
        ),
    ),
    *of(
        "exact/mdp.py",
        "frontier::test_a_glance_is_a_bound_as_near_as_it_says",
        ("(now - bound) / excess", "0.01 * (now - bound) / excess", "a glance ends before a policy is proved good"),
        ("bound_from_backup(cmdp, weights, value, backup), bound", "now, bound", "a glance takes values for bounds"),
    ),
    *of(
        "exact/vertex.py",
        "vertex",
        ("if cost[some] @ right[-1] <= 0.0", "if cost[some] @ right[-1] >= 0.0", "the walk to a vertex goes uphill"),
        ("- _after(cmdp, rows, counts)", "+ _after(cmdp, rows, counts)", "visits are not in balance on the walk"),
        ("if relative.min() > -1.0 else None", "if relative.min() > -9.0 else None", "rounding leaves the simplex"),
        ("_settle(cmdp, pi, np.flatnonzero(~seen))", "False", "states that are never visited stay randomised"),
    ),
    *of(
        "exact/integer.py",
        "deterministic",
        ("if (v[1:] <= allowed).all() and", "if", "a policy that misses a limit is taken"),
        (
            "low, high = np.append(self.low, -np.inf)",
            "low, high = np.append(self.low, 0.0)",
            "other policies are excluded as well",
        ),
        (
            "return np.minimum(most, ",
            "return np.minimum(0.5 * most, ",
            "states can be visited half as often",
        ),
    ),
    *of(
        "draws.py",
        "tables",
        ("self.first[flat[part] + 1] - 1", "self.first[flat[part] + 1]", "actions of the next state may be drawn"),
        ("self.cumulative[at] += self.cumulative[at - 1]", "pass", "probabilities are not summed"),
        ("if self._whole or _is_known", "if _is_known", "labels that are numbers are read as numbers"),
    ),
    *of(
        "tables.py",
        "tables",
        ("-pi[rows], states", "pi[rows], states", "the least probable action comes first"),
        ("<td>{escape(show(x))}</td>", "<td>{show(x)}</td>", "labels are not escaped"),
        ("np.flatnonzero(pi > 0.0)", "np.flatnonzero(pi >= 0.0)", "actions that are never played are listed"),
    ),
    *of(
        "exact/columns.py",
        "exact certificate steep_prices solve::test_closed_form solve::test_infeasible_models_are_proved_so",
        ("if cut.bound > self.bound:", "if cut.bound > -np.inf:", "the last bound is kept, not the best"),
        ("if mixture.excess > 1e-12:", "if mixture.excess > 1.0:", "a mixture outside the limits is an answer"),
    ),
    *of(
        "exact/feasibility.py",
        "exact certificate steep_prices solve::test_closed_form solve::test_infeasible_models_are_proved_so",
        (
            "search.farkas, search.farkas_margin = y, answer.bound",
            "search.farkas, search.farkas_margin = y, 2.0 * answer.bound",
            "the Farkas margin is overstated",
        ),
        ("(high - target) / (high - low)", "(target - low) / (high - low)", "a policy goes away from its bound"),
    ),
    *of(
        "exact/answer.py",
        "exact certificate steep_prices solve::test_closed_form solve::test_infeasible_models_are_proved_so",
        ("+= weights[j] * visits", "+= weights[j]", "policies are mixed without their visits"),
    ),
    *of(
        "envs/acrobot.py",
        "envs",
        ("pushing = action != 0", "pushing = action == 0", "the wrong torque costs"),
        (
            "angle_1) - np.cos(angle_1 + angle_2) > -0.5",
            "angle_1) - np.cos(angle_2) > -0.5",
            "the height of the tip is wrong",
        ),
        ('"random": self._random.copy()', '"random": self._random', "a saved state runs on with the environment"),
        (
            "SeedSequence(int(seed)).generate_state(self.num_envs, np.uint64)",
            "SeedSequence(int(seed)).generate_state(1, np.uint64).repeat(self.num_envs)",
            "all environments draw the same numbers",
        ),
    ),
    *of(
        "envs/acrobot_kernels.py",
        "envs",
        ("observation[i]) > 1.0", "observation[i]) > 0.5", "the goal is too low"),
        ("phi1 = -0.5 * (w2 * w2) * sin2", "phi1 = 0.5 * (w2 * w2) * sin2", "a force has the wrong sign"),
        ("ended[i] = age[i] >= window", "ended[i] = age[i] > window", "windows are a step too long"),
        ("last[i, :] = observation[i, :]", "last[i, :] = 0.0", "the last observation of a window is lost"),
        (
            "last[i, :] = observation[i, :]\n        age[i] = 0",
            "last[i, :] = observation[i, :]",
            "later windows take one step",
        ),
        ("costs[i, 1] = 1.0 if pushing and w2", "costs[i, 1] = 1.0 if pushing and w1", "the second cost is the first"),
    ),
    *of(
        "envs/numbers.py",
        "training::test_the_numbers_of_an_environment",
        ("x.__module__ != owner.__module__", "True", "functions of the same module are not looked at"),
        ("if len(found) < MOST:", "if True:", "whole tables are listed"),
    ),
    *of(
        "envs/lean.py",
        "envs::test_the_last_observation_outlives_the_reset",
        ("truncated, kept(observation)", "truncated, observation", "a reset overwrites the last observation"),
    ),
    *of(
        "envs/costs.py",
        "envs",
        (
            "reported = np.where(ended, last, reported)",
            "reported = np.where(ended & (final is not None), last, reported)",
            "the cost of a reset is that of the last step",
        ),
        (
            "np.where(ended[:, None], final, costs)",
            "np.where(ended[:, None], costs, final)",
            "costs of last steps are lost",
        ),
        ("(Step, (self._before, action", "(Step, (observation, action", "costs see the next observation"),
        (
            "reward, cost, terminated, truncated, info = answer",
            "reward, cost, truncated, terminated, info = answer",
            "ends and cuts are swapped",
        ),
        ("costs.shape[1] != count", "costs.shape[1] < count", "costs without a limit pass"),
        ("observation.copy() if type(", "observation if type(", "an observation is overwritten before it is used"),
    ),
    *of(
        "envs/batch.py",
        "envs neural::test_rollouts_tell_ends_from_cuts",
        (
            "count, autoreset_mode=SAME_STEP)",
            "count, autoreset_mode=AutoresetMode.NEXT_STEP)",
            "episodes end a step late",
        ),
        ("lambda: FloatCosts(make())", "lambda: make()", "costs become whole numbers"),
    ),
    *of(
        "rules/base.py",
        "rules",
        ("factor * (1.0 - self.gamma) * (", "factor * (", "dual steps do not see the horizon"),
        (
            "np.asarray(scales[0] / scales[1:])",
            "np.asarray(scales[1:] / scales[0])",
            "units of multipliers are upside down",
        ),
    ),
    *of(
        "rules/augmented_lagrangian.py",
        "rules",
        (
            "state.multipliers + penalty * view.values",
            "state.multipliers - penalty * view.values",
            "the penalty rewards violation",
        ),
        ("state.multipliers + eta_dual * view.values", "eta_dual * view.values", "multipliers are forgotten"),
    ),
    *of(
        "rules/crpo.py",
        "rules",
        ("v > -self.tolerance", "v > self.tolerance", "the safety margin lies outside the limit"),
        ("len(self.radii) - 1", "len(self.radii)", "three violated limits have no radius"),
        (
            "violated.argmax() if self.first else v.argmax()",
            "v.argmax() if self.first else violated.argmax()",
            "first and most are swapped",
        ),
    ),
    *of(
        "rules/growing.py",
        "adaptive::test_the_dual_step_solves_its_equation "
        "adaptive::test_with_one_state_the_prediction_is_exact "
        "adaptive::test_the_residual_vanishes_at_the_optimum_only "
        "adaptive::test_steps_stop_growing_at_their_cap run safeguard",
        ("np.abs(lam * v).sum()", "(lam * v).sum()", "slack limits with a price look optimal"),
        ("_scaled(state, min(growth, largest / state.step))", "state", "the steps do not grow"),
        ("min(growth, largest / state.step)", "growth", "the steps grow past their cap"),
        ("used**-0.5", "used**-1.0", "the steps grow as if errors were of first order"),
        ("rejected=state.rejected + 1", "rejected=0", "no candidate is ever given up"),
        ("- 0.5 * length", "+ 0.5 * length", "the first test has the wrong sign"),
    ),
    *of(
        "rules/bounded_dual.py",
        "bounded_dual",
        (" + view.visit_error", "", "what held visits have cost is left out of the divergence from a new anchor"),
        ("if excess >", "if -excess >", "lines count where they are far above the prediction"),
    ),
    *of(
        "rules/implicit_dual.py",
        "adaptive::test_the_dual_step_solves_its_equation adaptive::test_with_one_state_the_prediction_is_exact run",
        ("self.units**2 / eta_dual", "self.units / eta_dual", "dual steps are in the wrong units"),
        ("response.values - pull", "response.values", "the dual step is infinite"),
    ),
    *of(
        "rules/npg.py",
        "rules",
        ("Weights(1.0, state.multipliers)", "Weights(-1.0, state.multipliers)", "the objective is maximised"),
    ),
    *of(
        "rules/npg_pd.py",
        "rules",
        ("state.eta_dual * state.before", "state.eta_dual * view.values", "the dual sees the new policy"),
        ("0.0, state.dual_cap)", "0.0, np.inf)", "multipliers have no cap"),
    ),
    *of(
        "rules/pid_lagrangian.py",
        "rules",
        ("kd * np.maximum(0.0, v - state.last)", "kd * (v - state.last)", "a falling violation lowers the multiplier"),
        ("np.maximum(0.0, state.integral + v)", "(state.integral + v)", "the integral becomes negative"),
        ("lam / view.units).sum()", "lam).sum()", "the sum of multipliers forgets their units"),
    ),
    *of(
        "rules/opg_pd.py",
        "dual_rules",
        ("np.clip(centre + move", "np.clip(centre", "the multipliers are not ahead"),
        ("state._replace(before=view.values)", "state", "the first values count for ever"),
    ),
    *of(
        "rules/accelerated_npg.py",
        "dual_rules",
        ("lam + momentum * (lam - state.multipliers)", "lam", "there is no momentum"),
        ("part / max(1, view.values.size)", "part", "several limits take steps as large as one"),
    ),
    *of(
        "rules/ar_cpo.py",
        "dual_rules",
        ("eta_dual * view.values) / alpha", "eta_dual * view.values)", "steps do not grow"),
        ("* state.multipliers + alpha * moved", "* state.multipliers + alpha * state.moved", "averages lag behind"),
        ("(1.0 - kappa / alpha) * state.moved", "state.moved", "the quadratic term pulls nowhere"),
        ("(alpha - kappa) * state.moved) / (1.0 - kappa)", "alpha * state.moved)", "gradients are taken elsewhere"),
        ("(kappa - eta_dual * state.dual_weight) *", "0.0 *", "all multipliers have the smallest weight"),
    ),
    *of(
        "rules/rcpo.py",
        "dual_rules",
        ("0.0, self.dual_cap)", "0.0, np.inf)", "multipliers are not capped"),
    ),
    *of(
        "rules/cpo.py",
        "cpo",
        ("self.excess - start *", "self.excess + start *", "the step on the objective seems to help"),
        ("np.maximum(0.0, -view.values)", "np.abs(view.values)", "limits may be exceeded by more"),
        ("* self.deviations[0] / self.deviations[1:]", "/ self.deviations[1:]", "weights forget the reward's unit"),
    ),
    *of(
        "rules/pcpo.py",
        "cpo",
        ("local.nearest(t)", "local.nearest()", "the policy before the step is projected"),
    ),
    *of(
        "rules/focops.py",
        "plain_gradients",
        ("nu * units", "nu", "multipliers forget their units"),
    ),
    *of(
        "learners/neural/first_order.py",
        "plain_gradients",
        ("torch.minimum(ratio", "torch.maximum(ratio", "the clip is optimistic"),
        (
            "ratio * benefit[rows] / self.temperature - div",
            "ratio * benefit[rows] - div",
            "the temperature is forgotten",
        ),
        ("while divergence > self.radius:", "while False:", "steps leave the radius"),
    ),
    *of(
        "learners/tabular.py",
        "dual_rules",
        ("above = chosen & (table > pairs.over(level))", "above = chosen", "probabilities may be negative"),
    ),
    *of(
        "rules/pmd_pd.py",
        "rules",
        ("np.maximum(-eta_dual * v, state", "np.maximum(0.0, state", "the dual is projected to 0"),
        (
            "np.maximum(0.0, -eta_dual * view.values)",
            "np.maximum(0.0, eta_dual * view.values)",
            "the first multipliers have the wrong sign",
        ),
        (
            "Weights(1.0, state.multipliers + state.eta_dual * view.values, t_k)",
            "Weights(1.0, state.multipliers, t_k)",
            "the weights forget η′V",
        ),
    ),
    *of(
        "rules/registry.py",
        "options driver::test_growing_steps_are_a_rule_like_any_other",
        ("if m.steps != steps or not", "if not", "a variant replaces the others"),
        ("or not {*m.learners} & {*learners}]", "]", "a variant for one learner replaces that of another"),
        ("if learner in method.learners}", "}", "methods are offered to learners that cannot run them"),
    ),
    *of(
        "rules/theory.py",
        "theory sampling::test_the_constants_of_theorem_3_by_hand "
        "sampling::test_the_errors_that_theorem_3_allows_are_kept",
        ("* self.eta_dual / (1.0 - self.gamma) ** 3", "* self.eta_dual / (1.0 - self.gamma) ** 2", "α is too small"),
        (" + 2.0 * self.constraints / (1.0 - self.gamma) ** 2", "", "the violation bound forgets a term"),
        ("(self.macro_steps + 1) * self.constraints)", "(self.macro_steps + 1))", "δ is not shared by the constraints"),
        (
            "self.macro_steps * inner_steps * self.states",
            "self.macro_steps * self.states",
            "δ is not shared by the inner steps",
        ),
        ("/ (2.0 * size)", "/ size", "the truncation takes all of the error"),
        ("4.0 / (xi * (1.0", "2.0 / (xi * (1.0", "the multipliers of the tightened problem are underestimated"),
    ),
    *of(
        "primal_dual.py",
        "first_order driver::test_an_exact_run_continues_to_the_same_result",
        (
            "        view = learner.look()\n        state = rule.observe(state, view)",
            "        state = rule.observe(state, view)\n        view = learner.look()",
            "the dual sees the old policy",
        ),
        ("    k = done\n", "    k = 0\n", "a continued run counts from 0"),
    ),
    *of(
        "learners/exact.py",
        "checkpoints first_order adaptive",
        ("values[1:] - self.cmdp.offsets", "values[1:] + self.cmdp.offsets", "values forget the limits"),
        ("direction = cost + ahead + to_anchor", "direction = cost + ahead", "inner steps are not anchored"),
        ('"accuracy": self.accuracy,', '"accuracy": 0.0,', "checkpoints forget the accuracy"),
        (
            '"values_are_current": self._values_are_current',
            '"values_are_current": False',
            "checkpoints forget that values are known",
        ),
        (
            "fixed_anchor or self._anchor)",
            "fixed_anchor or TabularPolicy.uniform(self.cmdp.states, self.cmdp.actions))",
            "the anchor is the uniform policy",
        ),
    ),
    *of(
        "learners/exact_view.py",
        "checkpoints first_order adaptive",
        (
            "-float(np.dot(self.learner.state_visits, least))",
            "-float(least.sum())",
            "the greedy gain forgets the visits",
        ),
        ("max(1.0, float(np.abs(cmdp.costs[0]).max()))", "1.0", "large costs do not raise the cap"),
    ),
    *of(
        "learners/exact.py",
        "learners",
        (
            "policy, weights.radius, self.state_visits)",
            "policy, weights.radius)",
            "the radius holds in every state, not on average",
        ),
    ),
    *of(
        "learners/tabular.py",
        "learners",
        ("between, visits) <= radius", "between, visits) <= 2.0 * radius", "steps end outside their radius"),
        ("visits @ divergence / visits.sum()", "visits @ divergence", "the mean divergence is a sum"),
        ("np.maximum(log_pi, floor)", "log_pi", "there is no floor under log-probabilities"),
    ),
    *of(
        "learners/sampled.py",
        "sampling::test_action_values_by_hand sampling::test_two_inner_steps_by_hand "
        "sampling::test_many_samples_give_the_exact_step checkpoints estimators",
        ("step * (q + to_anchor)", "step * q", "inner steps are not anchored"),
        (
            "(policy.pi * to_anchor)",
            "(policy.pi * (log_pi - anchor))",
            "the divergence forgets α",
        ),
        (
            "self.policy, self.values, self.outlook = policy, None, None",
            "self.policy, self.outlook = policy, None",
            "values of the old policy are kept",
        ),
        ('int(state["draws"]), int', "0, int", "a continued run draws the same numbers again"),
        ('"samples": meter.samples}', '"samples": 0}', "checkpoints forget what was drawn"),
    ),
    *of(
        "learners/estimators.py",
        "estimators streams sampling::test_values_by_hand checkpoints",
        ("self.draws += 1", "self.draws = 1", "every estimate draws the same numbers"),
        (
            "values[1:] -= seen * self.simulator.offsets",
            "values[1:] -= self.simulator.offsets",
            "truncated values pay the whole limit",
        ),
        ("self.draws, part)", "self.draws, 0)", "parts of a long draw repeat each other"),
        (
            "self.samples + rollouts * transitions_each > self.budget",
            "rollouts * transitions_each > self.budget",
            "the budget is for each draw",
        ),
        (
            "model.pairs.sum(pi * cost) + divergence",
            "model.pairs.sum(pi * cost)",
            "pooled values forget it",
        ),
        ("self.first = self.first + seen", "self.first = seen", "first states are forgotten"),
        ("values[1:] -= model.offsets", "values[1:] += model.offsets", "pooled values forget the limits"),
        ("STARTS, self.meter.draws))", "STARTS))", "first states are drawn with the same numbers again"),
        (
            "each = quantities.reshape(len(quantities), count, pairs.size)",
            "each = quantities.reshape(len(quantities), pairs.size, count).swapaxes(1, 2)",
            "quantities are added to other pairs",
        ),
        ('"first": self.first, ', '"first": np.zeros_like(self.first), ', "checkpoints forget the first states"),
    ),
    *of(
        "learners/estimators.py",
        "average_samples::test_links_that_have_not_been_seen_yet average_samples::test_classes_that_are_never_left",
        ("share * system.state_occupancy()", "system.state_occupancy()", "averages count discounted visits"),
        ("self.drawn / (self.drawn + 1.0)", "0.5", "the discount that stands for an average does not vanish"),
        ("pairs.uniform()))[0] > 1:", "pairs.uniform()))[0] > 99:", "links not seen yet are taken for missing"),
    ),
    *of(
        "learners/sampled.py",
        "average_samples::test_learned_policies_come_to_the_optimum",
        (
            '0.0 if simulator.criterion == "average" else simulator.gamma',
            "simulator.gamma",
            "a step of an average has no weight",
        ),
    ),
    *of(
        "learners/plans.py",
        "estimators sampling::test_the_errors_that_theorem_3_allows_are_kept",
        (
            "math.ceil(math.log(CUT_OFF) / math.log(gamma))",
            "math.floor(math.log(CUT_OFF) / math.log(gamma))",
            "rollouts are a step too short",
        ),
        (
            "np.append(0.0, simulator.step_weight * simulator.offsets)",
            "np.append(0.0, simulator.offsets)",
            "limits are not spread over the steps",
        ),
        (
            "(self.high - self.low)[1:].max()",
            "(self.high - self.low)[1:].min()",
            "value rollouts suit the narrowest cost only",
        ),
        ("np.maximum(np.abs(self.low), np.abs(self.high))", "np.abs(self.high)", "costs below zero have no size"),
    ),
    *of(
        "learners/neural/critics.py",
        "neural",
        (" + away**2 * count * n / total", "", "deviations forget that means differ"),
        (
            "self.theta, self.first, self.second, self.steps = kept",
            "self.theta = kept[0]",
            "failed fits leave Adam's moments",
        ),
        (".mul_(2.0 / targets.numel())", ".mul_(-2.0 / targets.numel())", "wide critics learn the opposite"),
        ("vars(self.returns).update(moments)", "pass", "failed fits leave the scale of the returns"),
        ("(1.0 - forget) * self.squares", "self.squares", "old returns do not fade"),
    ),
    *of(
        "learners/neural/regression.py",
        "neural",
        ("- targets[begin", "+ targets[begin", "critics learn the opposite"),
        ("        out += room", "        out[:] = room", "all but the last rows of a minibatch are forgotten"),
        ("np.float32(h > ZERO)", "np.float32(h >= ZERO)", "units that are off learn"),
        ("*= ONE - h * h if", "*= ONE - h if", "the slope of tanh is wrong"),
    ),
    *of(
        "learners/neural/distributions.py",
        "neural",
        ("z * z - 1.0]", "z * z]", "the score of log σ is not centred"),
        ("torch.full_like(mean, 2.0)", "torch.full_like(mean, 1.0)", "the Fisher metric of log σ is wrong"),
        ("- 0.5).sum(dim=1)", ").sum(dim=1)", "normals diverge from themselves"),
        ("pi * (v - (pi * v).sum(dim=1, keepdim=True))", "pi * v", "the Fisher metric of the softmax is diagonal"),
    ),
    *of(
        "learners/neural/learner.py",
        "neural best_policy",
        (
            "(mean[1:] - self.limits + self.margin)",
            "(mean[1:] + self.limits + self.margin)",
            "limits have the wrong sign",
        ),
        ("[self.seed, ROLLING, self.iteration]", "[self.seed, ROLLING]", "every rollout draws the same numbers"),
        (
            "[self.seed, FITTING, self.iteration]",
            "[self.seed, ROLLING, self.iteration]",
            "critics are shuffled with the rollout's numbers",
        ),
        ("mean[1:] + error[1:] > self.limits", "mean[1:] > self.limits", "the best policy may be over its limits"),
        (
            "np.asarray(mean[1:] - np.where(self.limited, self.limits, 0.0))",
            "np.asarray(mean[1:] - np.where(self.limited, self.limits, 0.0) + self.margin)",
            "margins change what is reported",
        ),
        ("ratio - divergence + discounted(", "ratio + discounted(", "the divergence of the state itself is counted"),
        ("_standardised(-mixed,", "_standardised(mixed,", "costs are maximised"),
        ("weights.step * deviation", "weights.step", "a step means another size in every batch"),
        ("returns = advantages + guess", "returns = advantages", "critics learn advantages"),
        ('"critics_steps": critics.steps,', '"critics_steps": 0,', "checkpoints forget Adam's steps"),
        ('"verdicts": dict(self.verdicts),', '"verdicts": {},', "checkpoints forget the verdicts"),
    ),
    *of(
        "learners/neural/local.py",
        "implicit_training",
        ("g[0] @ x[1].T + g[1] @ x[0].T", "g[0] @ x[0].T + g[1] @ x[1].T", "steps are judged by their own samples"),
        (".div_(len(rows)) for", ".div_(len(self.x)) for", "a half counts half"),
    ),
    *of(
        "rules/trust_region.py",
        "implicit_training",
        ("self.memory * np.diag(", "-0.5 * np.diag(", "multipliers run away from the last ones"),
        ("np.clip(view.values, -most, most)", "view.values", "violations beyond reach add up"),
        ("+ state.rest, -reach", "+ 0.0 * state.rest, -reach", "wrong predictions move the limit"),
        ("slope, hessian), LARGEST)", "slope, hessian), np.inf)", "prices grow without end"),
        ("rate * (np.log(", "varies * (np.log(", "one iteration sets the units of the multipliers"),
    ),
    *of(
        "learners/neural/networks.py",
        "neural",
        ("z.addmm_(moved, weight)", "z.addmm_(moved, weight, alpha=0.0)", "derivatives stop at the last layer"),
        ("else 1.0) / math.sqrt(a)", "else 1.0) / a", "weights begin too small"),
        ("mine.copy_(v)", "pass", "derivatives are along an older direction"),
    ),
    *of(
        "learners/neural/acting.py",
        "neural",
        ("range(a - a % 4, a)", "range(a, a)", "inputs beyond a multiple of four do not count"),
    ),
    *of(
        "learners/neural/policy.py",
        "neural",
        ("self._centre + self._half * actions", "self._half * actions", "actions are centred at 0"),
        (
            "np.minimum(x, CLIP, out=x)",
            "pass",
            "wild observations are not cut",
        ),
        ("mean + np.exp(log_std) * noise", "mean + log_std * noise", "noise has the wrong deviation"),
        ('"shift": self.shift, "scale": self.scale}', '"shift": self.shift}', "files forget the scale of observations"),
    ),
    *of(
        "learners/neural/sums.py",
        "neural",
        ("if not ended[t, i]:", "if True:", "sums go on into the next episode"),
    ),
    *of(
        "learners/neural/rollouts.py",
        "neural implicit_training",
        ("if (truncated & ~terminated).any():", "if False:", "a cut without its last observation is an end"),
        (
            "(truncated[t] | (t == steps - 1)) & ~terminated[t]",
            "truncated[t] | (t == steps - 1)",
            "a terminal last step is bootstrapped past",
        ),
        (
            "finals.get(int(i), shown[i])",
            "shown[i]",
            "a cut episode is followed by the next one's start",
        ),
        ("ahead[self.ended] = 0.0", "pass", "values leak from the next episode"),
        (
            "np.cumsum(self.ended, axis=0) - self.ended == 0",
            "np.cumsum(self.ended, axis=0) == 0",
            "the last step of an episode does not count",
        ),
        ("quantities[:, :, 0] *= -1.0", "pass", "rewards are minimised"),
        (
            "gamma ** np.arange(len(weight))[:, None]",
            "gamma ** np.arange(1, len(weight) + 1)[:, None]",
            "the first step is discounted",
        ),
        ("n * whole - (n - 1) * without", "whole + 0.0 * without", "means of all episodes are biased"),
        ("self.ended, gamma * smoothing)", "self.ended, gamma)", "the smoothing of advantages is forgotten"),
    ),
    *of(
        "learners/neural/stream.py",
        "persist",
        ("self.standing = rollout.last", "self.standing = rollout.seen[-1]", "environments go on a step too early"),
        ("sums[over], ages[over] = 0.0, 0.0", "ages[over] = 0.0", "episodes inherit the sums of the last"),
        ("np.array_equal(np.asarray(seen", "not np.array_equal(np.asarray(seen", "repetitions are not checked"),
    ),
    *of(
        "learners/neural/trust_region.py",
        "neural",
        ("math.sqrt(2.0 * radius / curvature)", "math.sqrt(radius / curvature)", "steps are too short"),
        ("x @ (fisher(x) + damping * x)", "x @ fisher(x)", "the length of a step forgets the damping"),
        ("divergence <= radius and gain >=", "gain >=", "steps leave their region"),
        ("min(length, farthest)", "length", "a given length leaves the region"),
        ("ACCEPT * size * promised > 0.0", "-math.inf", "steps that gain nothing are taken"),
    ),
    *of(
        "model/sharded.py",
        "sharded",
        ("costs = self.units[:, None] * table", "costs = 1.0 * table", "blocks maximise costs"),
        ("np.append(0, 1 + self.owners)", "np.append(0, self.owners)", "limits bound the wrong quantity"),
        ("if abs(mass - 1.0) > ROW_SUM_TOLERANCE:", "if False:", "a start of any mass passes"),
    ),
    *of(
        "sharded/exchange.py",
        "sharded",
        ("table[wanted] += message", "table[wanted] = message", "visits from outside replace those from inside"),
    ),
    *of(
        "sharded/shard.py",
        "sharded",
        ("kernels.mix(self.values, weights, self.mix)", "pass", "a backup uses the values of another question"),
        ("after = inbox[0]", "pass", "a backup does not see joined messages"),
        ("self._mass * most", "0.0", "the rounding of the start is forgotten", "it is far below the rest"),
    ),
    *of(
        "cluster/actors.py",
        "sharded_cluster",
        ("self._place(dead)", "self._place(dead[:0])", "lost workers are not replaced"),
        ("home in dead]", "home not in dead]", "the wrong blocks are called lost"),
    ),
    *of(
        "sharded/halo.py",
        "sharded",
        (
            "place[halo] = n + np.arange(halo.size)",
            "place[halo] = n + np.arange(halo.size)[::-1]",
            "halos are reversed",
        ),
        ("whole = part.size >= WHOLE * (high - low)", "whole = True", "a lattice sends whole blocks"),
    ),
    *of(
        "sharded/oracle.py",
        "sharded",
        ("StartSums(sum(p.start for p in parts)", "StartSums(parts[0].start", "the bound sees one block only"),
        ("slack = slack + (model.largest + 2) * EPS", "slack = -1.0", "proved values forget their errors"),
        ("low, high = min(p.low for p in parts)", "low, high = max(p.low for p in parts)", "the best block bounds all"),
    ),
    *of(
        "sharded/search.py",
        "sharded",
        ("if answer.bound > 0.0:", "if answer.bound > -1e9:", "anything refutes the limits"),
        (
            'self.upper, self.farkas_margin = float(state["upper"])',
            "self.upper, self.farkas_margin = 0.0",
            "a run that continues has another bound",
        ),
    ),
    *of(
        "sharded/krylov.py",
        "sharded::test_slow_chains_are_evaluated_by_gmres_in_a_fraction_of_the_sweeps",
        ("rest[:, c] = target - (matrix * take[:, c]).sum(axis=1)", "rest[:, c] = target", "GMRES stands still"),
        ("np.sum([p.sums for p in found], axis=0)", "found[0].sums", "inner products see one block only"),
    ),
    *of(
        "sharded/subspace.py",
        "sharded::test_slow_chains_are_evaluated_by_gmres_in_a_fraction_of_the_sweeps",
        ("self.exchange.receive(inbox, self._w)", "pass", "products forget the other blocks"),
    ),
    *of(
        "sharded/folder.py",
        "sharded",
        ('"model": crew.model.fingerprint, **run', "**run", "a run continues from that of another model"),
        ("write_json(self.path / HEAD, head)", "pass", "a checkpoint is never found"),
    ),
    *of(
        "sharded/first_order.py",
        "sharded",
        ('self.learner.restore(saved["learner"])', "self.learner.begin()", "pmd-pd continues from the uniform policy"),
    ),
    *of(
        "run/storage.py",
        "sharded",
        ("_save(result, folder / HEAD, name)", "pass", "a result in blocks has no description"),
    ),
    *of(
        "sharded/solve.py",
        "sharded",
        ("if not (search.stuck or resumed):", "if not search.stuck:", "a run that continues asks once too often"),
        ('search.restore(saved["search"])', "pass", "a run that continues forgets what was found"),
    ),
    *of(
        "certificates/checker.py",
        "certificate bounds",
        ("abs(v_0 - bound) + errors[0]", "abs(v_0 - bound)", "the gap forgets the rounding"),
        ("v + errors[1:]", "v", "the violation forgets the rounding"),
        ("local += (terms * EPS + slack)[:, None]", "local += 0.0", "the rounding of the residual is forgotten"),
        ("return weights @ values, weights", "return values.mean(axis=0), weights", "a mixture has equal parts"),
        (
            "np.zeros(cmdp.num_rows), np.inf, plan)",
            "np.zeros(cmdp.num_rows), 0.0, plan)",
            "an infeasible model has a bound",
        ),
        ("(excess / cmdp.tolerance_scales).max(initial=0.0)", "excess.max(initial=0.0)", "violations are not relative"),
    ),
    *of(
        "certificates/certificate.py",
        "certificate",
        ("return self.feasible(tol) and self.gap <= tol", "return self.gap <= tol", "an unsafe policy is optimal"),
    ),
    *of(
        "certificates/prover.py",
        "certificate",
        (
            "minimise(cmdp, np.append(1.0, lam)).bound",
            "minimise(cmdp, np.append(1.0, 0.0 * lam)).bound",
            "given multipliers are not used",
        ),
    ),
    *of(
        "certificates/rollouts.py",
        "statistics streams",
        ("share = delta / mean.size", "share = delta", "δ is not shared by the quantities"),
        ("(look * (look + 1) if until_decided else 1)", "1", "looks spend no δ"),
        ("(seed, JUDGING, look)", "(seed, JUDGING, 1)", "rollouts are drawn twice"),
        ("mean + width + rest_high", "mean + width", "the upper end forgets the tail"),
        ("mean - width + rest_low", "mean - width", "the lower end forgets the truncated tail"),
        (" + 7.0 * span * log / (3.0 * (rollouts - 1))", "", "the width is right only for many rollouts"),
        ("0.0) / (n - 1)", "0.0) / n", "the variance is biased"),
        (
            ".multinomial(rollouts, mixture.weights)",
            ".multinomial(rollouts, [1 / len(mixture)] * len(mixture))",
            "mixtures are judged evenly",
        ),
        (
            "counts, strict=True), start=1)",
            "counts, strict=True), start=0)",
            "the first policy is rolled out with the numbers that drew it",
        ),
        ("min(total.rollouts, max_rollouts - total.rollouts)", "total.rollouts", "more is drawn than allowed"),
        (
            "least <= lower and upper <= most",
            "least <= upper and upper <= most",
            "AtLeast is judged at the wrong end",
        ),
        ("np.abs(simulator.units[stated])", "np.ones(stated.size)", "limits per step are judged by the sum"),
        ("SHARE_CUT_OFF / math.sqrt(rollouts)", "SHARE_CUT_OFF", "the horizon ignores the number of rollouts"),
    ),
    *of(
        "certificates/rollouts.py",
        "average_samples::test_every_part_of_the_interval_by_hand average_samples::test_more_rollouts_decide "
        "average_samples::test_the_bias_of_a_mixture_is_the_mean "
        "average_samples::test_the_length_suits_the_number_of_rollouts",
        (' / (horizon if simulator.criterion == "average" else 1)', "", "an average is the sum"),
        ("fresh if longer > steps else total + fresh", "total + fresh", "rollouts of different lengths are added up"),
        ("mixture.weights @ np.array(bounds)", "np.min(bounds)", "a mixture is as fast as its fastest policy"),
        ("max(1.0, self.bias) * 3.0", "3.0", "the length of rollouts ignores how soon a chain forgets"),
    ),
    *of(
        "certificates/episodes.py",
        "episodes",
        ("share = (1.0 - confidence) / mean.size", "share = 1.0 - confidence", "δ is not shared by the quantities"),
        ("[seed, JUDGING, batch]", "[seed, JUDGING]", "every batch repeats the same episodes"),
        ("    check_gamma(gamma)\n", "", "with gamma above 1 the rest of an episode counts with the wrong sign"),
        ("mean + width + rest[:, 1]", "mean + width", "the upper end forgets what follows the last step"),
        ("table[0] = -table[0, ::-1]", "table[0] = -table[0]", "bounds of the reward are upside down"),
        ("np.minimum(table[:, 0], 0.0)", "table[:, 0]", "episodes that end early leave their bounds"),
        ("1.0 - share / 2.0, episodes - 1", "1.0 - share, episodes - 1", "Student's intervals are one-sided"),
        ("samples.var(axis=0, ddof=1)", "samples.var(axis=0)", "the variance is biased"),
        ("* length), rest", "* 1.0), rest", "the span of an episode is that of a step"),
        (
            "(-float(upper[0]), -float(lower[0]))",
            "(-float(lower[0]), -float(upper[0]))",
            "the interval of the reward is upside down",
        ),
        ("np.concatenate(parts)[:episodes]", "np.concatenate(parts)", "episodes are counted that were not asked for"),
        ("(seen > table[:, 1])", "(seen > 2.0 + table[:, 1])", "costs outside their bounds pass"),
    ),
    *of(
        "certificates/episodes.py",
        "neural::test_no_generator_of_a_training_run_or_its_certificate_is_made_twice",
        ("[seed, JUDGING, batch]", "[seed, 1, batch]", "policies are judged by episodes they learned from"),
    ),
    *of(
        "run/budget.py",
        "run solve::test_iteration_limit_keeps_the_best_so_far",
        ("iterations >= self.max_iterations", "iterations > self.max_iterations", "a run takes a step too many"),
        ("max(0.0, self.time_limit - self.elapsed)", "self.time_limit", "time that is spent is left"),
        ("(int, np.bool_, np.integer)) and stop", "(int,)) and stop", "NumPy's truth does not stop a run"),
    ),
    *of(
        "run/budget.py",
        "training::test_bad_input_is_refused_before_any_work",
        ("check_count(seed,", "check_count(0,", "negative seeds pass"),
    ),
    *of(
        "run/checkpoint.py",
        "checkpoints",
        ("if found.get(name) != self.run[name]]", "if False]", "another run is continued"),
        ("max(SECONDS, 20.0 * (now - started))", "SECONDS", "a slow disk takes all the time"),
        ("if resume is False and found", "if resume is False and not found", "a run is written over"),
        ("except OSError as error:", "except KeyError as error:", "a full disk costs the run"),
    ),
    *of(
        "run/choice.py",
        "options run",
        ("n in open_fields and n in options_of", "n in options_of", "presets replace what was given"),
        ('"fixed" if fixed else default)', "default)", "steps of a given size grow"),
        (
            'type(self.rule).__name__} | rule, "options": options}',
            'type(self.rule).__name__}, "options": options}',
            "a rule with other fields is the same run",
        ),
        ("wanted |= {n: v for n, v in given.items() if n in shared and n not in own}", "pass", "settings are ignored"),
    ),
    *of(
        "run/driver.py",
        "checkpoints",
        ('"steps": self.steps,', '"steps": 0,', "checkpoints forget the number of steps"),
        ("self.budget.started -= self.recorder.rows[-1].time", "pass", "a continued run forgets its time"),
        ("self.learner.restore(self._mark)\n", "pass\n", "a failed step leaves the learner in its middle"),
        ("self.recorder.restore(_part(saved, RECORD))", "pass", "averages are forgotten"),
        ("observer.restore(self._observers_before[-1])", "pass", "the prover forgets its bound"),
        (
            "found = next((verdict for verdict in verdicts if verdict is not None), None)",
            "found = None",
            "a proof does not end the run",
        ),
    ),
    *of(
        "run/prover.py",
        "checkpoints run",
        ('"bound": self.bound, "multipliers"', '"bound": -np.inf, "multipliers"', "checkpoints forget the bound"),
        ('"next_check": self.next_check, ', '"next_check": 10, ', "checkpoints forget when to look next"),
        (
            'state | {"distance": self.closest[0]',
            'state | {"distance": 0.0',
            "checkpoints forget the smallest distance",
        ),
        ("if bound > self.bound:", "if bound < self.bound:", "the worst bound is kept"),
        (
            "distance <= self.tol * self.cmdp.proof_scale(certificate.objective)",
            "distance <= np.inf",
            "small costs are not solved",
        ),
        ("(not c.feasible(self.allowed_violation), max(", "(False, max(", "an unsafe policy is preferred"),
        (
            "y.min(initial=0.0) >= 0.0 and (y := self.cmdp.netted(y)).sum() > 0.0",
            "False",
            "infeasible models are not refuted",
        ),
    ),
    *of(
        "run/recorder.py",
        "run checkpoints first_order bounds::test_histories_near_large_limits_keep_their_digits",
        (
            "self.learner.add_occupancy(self.occupancy)",
            "self.occupancy = self.learner.occupancy",
            "the average is the last",
        ),
        ("iterate.v - self.margins", "iterate.v + self.margins", "tightened limits are recorded twice"),
        (" + problem.stated(problem.signs * lost)", "", "histories lose digits to large limits"),
        ('self.last_weights = np.array(state["last_weights"])', "pass", "checkpoints forget the last weights"),
        ("int(steps), float(time), int(samples),", "int(steps), float(time), 0,", "checkpoints forget the samples"),
        (
            "np.maximum(row.v, 0.0) / problem.tolerance_scales",
            "np.maximum(row.v, 0.0)",
            "callbacks hear absolute violations",
        ),
        (
            "self.policies = [TabularPolicy.stored(self.problem.pairs, table) for table in state",
            "_ = [TabularPolicy.stored(self.problem.pairs, table) for table in state",
            "the mixture forgets its first policies",
        ),
        ("w[1:] / w[0], 0.0)", "w[1:], 0.0)", "weights are taken for multipliers"),
        (
            ".stated_prices(row.multipliers).copy()",
            ".stated_prices(row.multipliers)",
            "a callback can write into the record",
        ),
    ),
    *of(
        "run/training_recorder.py",
        "training_record",
        ("self._fresh = len(self.learner.updates)", "self._fresh = 1", "callbacks miss inner iterations"),
        ("update.iteration * each", "each", "steps are not added up"),
        ('"verdict": [str(detail.verdict)', '"verdict": ["accepted"', "checkpoints forget the verdicts"),
    ),
    *of(
        "run/storage.py",
        "run travel",
        ("AtMost if sign > 0 else AtLeast", "AtLeast if sign > 0 else AtMost", "files swap AtMost and AtLeast"),
        ("sign, limit, c.per_step]", "sign, limit, False]", "files forget limits per step"),
        ("return tuple(_decode(item)", "return list(_decode(item)", "tuples come back as lists"),
        (
            'f"{name}_weights": policy.weights,',
            'f"{name}_weights": np.full(len(policy), 1.0 / len(policy)),',
            "files forget the weights of a mixture",
        ),
        ('if plain["version"] not in VERSIONS:', "if False:", "files of another version pass"),
    ),
    *of(
        "run/explained.py",
        "run solve::test_infeasible_models_are_proved_so",
        (
            "replace(outcome, policy=found.policy, certificate=certificate, note=note)",
            "replace(outcome, certificate=certificate, note=note)",
            "the policy is not the certified one",
        ),
    ),
    *of(
        "run/finish.py",
        "run solve::test_the_papers_instance solve::test_infeasible_models_are_proved_so",
        ("recorder.values / iterate.k)", "recorder.values)", "the average policy enters with the sum of values"),
        (
            "elif certificate.optimal(tol):  # whatever HiGHS thinks of it",
            "elif solution.feasible:",
            "the LP is believed without a proof",
        ),
        (
            "if certificate.optimal(tol):\n                    status",
            "if True:\n                    status",
            "columns are believed without a proof",
        ),
    ),
    *of(
        "run/first_order.py",
        "run theory",
        ("tol if margins is None else 0.0", "tol", "zero violation means a little violation"),
        (
            '5.0 / float(spans.max() if method.scale == "largest" else spans[0])',
            "5.0 / float(spans[0])",
            "CRPO's steps ignore large costs",
        ),
        ("min(1.0, span) * cmdp.step_weight", "min(1.0, span)", "the entropy bonus is too large for a proof"),
        (
            "theorem.eta_dual, inner_steps=theorem.inner_steps)",
            "theorem.eta_dual)",
            "the theorem's inner steps are not taken",
        ),
    ),
    *of(
        "run/sampled.py",
        "run sampling::test_every_transition_is_counted "
        "sampling::test_theorem_3_keeps_its_promise "
        "sampling::test_another_run_is_not_continued",
        (
            'scales.max() if choice.method.scale == "largest" else scales[0]',
            "scales[0]",
            "CRPO's steps ignore large costs",
        ),
        ("sampling.horizon or simulator", "0 or simulator", "the horizon that was asked for is ignored"),
        ('{"seed": seed, ', "{", "a run with another seed is continued"),
        (
            "min(theorem.macro_steps, budget.max_iterations or theorem.macro_steps)",
            "theorem.macro_steps",
            "the theorem ignores max_iterations",
        ),
    ),
    *of(
        "run/zero.py",
        "theory",
        ("push * excess + 1e-12", "0.0 * excess + 1e-12", "limits are not tightened"),
        ("return b / theorem.macro_steps", "return 2.0 * b / theorem.macro_steps", "limits are tightened twice"),
        ("if theorem.macro_steps < 2.0 * b / xi:", "if theorem.macro_steps < b / xi:", "too few steps pass"),
    ),
    *of(
        "run/first_order.py",
        "run checkpoints",
        ('fixed = {"tol": tol}', "fixed = {}", "a run with another tolerance is continued"),
        (
            "cmdp.costs, cmdp.offsets, cmdp.initial",
            "cmdp.costs, cmdp.initial",
            "a model with other limits is the same run",
        ),
    ),
    *of(
        "solver.py",
        "run",
        (
            "with_columns_behind(cmdp, outcome, tol, budget) if to_the_end else outcome",
            "outcome",
            "growing steps that prove nothing are the end",
        ),
    ),
    *of(
        "run/arguments.py",
        "run checkpoints",
        ("method == ZERO:\n        raise", "method == '':\n        raise", "a checkpoint is taken that is not written"),
    ),
    *of(
        "run/judged.py",
        "run sampling::test_an_impossible_limit_is_proved_impossible_when_the_model_is_known",
        ("Status.INFEASIBLE if infeasible else status", "status", "an impossible limit is not reported"),
    ),
    *of(
        "run/balanced.py",
        "extremes",
        ("np.ldexp(columns[name], rest)", "columns[name]", "histories are told in even units"),
        (
            "if own.optimal(tol) else",
            "if outcome.certificate.optimal(tol) else",
            "the status is that of the even model",
            "the status of the even model implies that of the original wherever both are proved",
        ),
    ),
    *of(
        "training.py",
        "training_record training::test_tensorboard_reads_what_was_written "
        "training::test_the_multipliers_follow_the_rule "
        "training::test_bad_input_is_refused_before_any_work",
        (
            "np.zeros(int(learner.limited.sum())) if choice.method.multipliers else None",
            "None",
            "training begins with the rule's multipliers",
        ),
        (
            "np.maximum(values - learner.limits, 0.0)",
            "np.maximum(learner.limits - values, 0.0)",
            "violations have the wrong sign",
        ),
        (
            "news.constraint_values[i], news.iteration",
            "news.multipliers[i], news.iteration",
            "TensorBoard shows multipliers as costs",
        ),
        ("samples=learner.environment_steps", "samples=learner.iteration", "iterations are reported as steps"),
    ),
    *of(
        "cli/common.py",
        "cli::test_a_file_named_like_a_problem_is_read cli::test_infeasible_exits_3 "
        "cli::test_out_never_overwrites_the_model",
        ("Path(path).samefile(model)", "False", "the model is overwritten"),
        ("in CATALOGUE and not Path(name).is_file()", "in CATALOGUE", "a file with the name of a problem is ignored"),
        (
            "DONE, LIMIT_REACHED, BAD_INPUT, INFEASIBLE = 0, 1, 2, 3",
            "DONE, LIMIT_REACHED, BAD_INPUT, INFEASIBLE = 0, 1, 2, 1",
            "infeasible ends like a limit",
        ),
    ),
    *of(
        "cli/solving.py",
        "cli::test_a_budget_that_runs_out_exits_1 cli::test_certify_a_safe_policy_that_is_not_optimal",
        (".get(status, LIMIT_REACHED)", ".get(status, DONE)", "a run that was cut short ends like success"),
        ("DONE if optimal else LIMIT_REACHED", "DONE", "a policy that is not optimal ends like success"),
    ),
    *of(
        "cli/training.py",
        "training::test_train_and_evaluate_on_the_command_line",
        ("DONE if proof.satisfied else LIMIT_REACHED", "DONE", "an unsafe policy ends like success"),
        ('else ("steps", "gamma")', 'else ("gamma",)', "episodes are judged over other steps than trained"),
    ),
    *of(
        "rules/checked.py",
        "driver::test_what_an_own_rule_returns_is_checked",
        ("if not np.isfinite(numbers).all():", "if False:", "weights of NaN make a policy of NaN"),
        ("if numbers.shape != shape:", "if False:", "weights of another shape reach the learner"),
    ),
    *of(
        "model/reading.py",
        "ways_in::test_both_readers_of_csv_files_agree",
        ('r"\\s*(0|-?[1-9][0-9]{0,17})\\s*"', 'r"\\s*[+-]?[0-9]{1,18}\\s*"', "the labels 01 and 1 are one state"),
        ("(unusual or frame[n]", "(frame[n]", "the labels 01 and 1 are one state in large files"),
    ),
    *of(
        "cli/flags.py",
        "cli::test_one_number_serves_all_constraints_and_several_are_one_each",
        ('if self.always_list or "," in value else numbers[0]', "", "one number becomes a list"),
    ),
]


if __name__ == "__main__":
    sys.exit(main())
