"""Beyond the paper: MuJoCo's robots with a speed limit, against published figures of safe reinforcement learning."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.drawing import band, curve, figure, styles
from cmdpkit.experiments.common import Claim, Section, Settings, append_row, read_csv, write_csv
from cmdpkit.experiments.fig4 import run_all
from cmdpkit.rules.registry import names

LIMIT = 25.0
"""Steps per episode of 1,000 in which a robot may be faster than its top speed."""
SPEEDS = {
    "HalfCheetah": 3.2096,
    "Hopper": 0.7402,
    "Walker2d": 2.3415,
    "Swimmer": 0.2282,
    "Ant": 2.6222,
    "Humanoid": 1.4149,
}
"""Top speeds of Safety-Gymnasium's velocity tasks; of Ant and Humanoid in the plane."""
AS_PUBLISHED: dict[str, dict[str, Any]] = {
    "Ant": {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0.0},
    "Humanoid": {"contact_cost_weight": 0.0},
}
"""Published figures are of version 4 of the robots. These arguments make version 5 the same task: that Ant does not
observe contact forces, and neither robot pays for contacts."""
PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    "HalfCheetah": {"TRPO-Lag": (1780, 16), "CPO": (1680, 15), "PPO-Lag": (2270, 25), "FOCOPS": (1980, 31)},
    "Hopper": {"TRPO-Lag": (1300, 21), "CPO": (1330, 31), "PPO-Lag": (1590, 23), "FOCOPS": (1450, 17)},
    "Swimmer": {"TRPO-Lag": (34, 25), "CPO": (19, 25), "PPO-Lag": (53, 27), "FOCOPS": (40, 29)},
    "Walker2d": {"TRPO-Lag": (1300, 22), "CPO": (2050, 20), "PPO-Lag": (2250, 25), "FOCOPS": (2250, 23)},
    "Ant": {"TRPO-Lag": (2407, 3), "CPO": (1904, 36), "PPO-Lag": (2643, 24), "FOCOPS": (2175, 27)},
    "Humanoid": {"TRPO-Lag": (800, 35), "CPO": (575, 35), "PPO-Lag": (842, 8), "FOCOPS": (762, 6)},
}
"""Reward and cost after 10⁶ steps of OmniSafe's on-policy benchmark: Ant and Humanoid from its tables "(1M)", others
read from its curves (about ± 50)."""
ITERATIONS, SEEDS = 250, 5  # of 4,000 steps each
FIRST = 10
"""The first seed: constants were chosen on smaller ones, except for `least_deviation` (docs/decisions.md)."""
LAST = 20
RUNS = Path("out/velocity")
DATA, SEEDS_DATA = "velocity.csv", "velocity_seeds.csv"
SLOW = True


def make(robot: str) -> Any:
    """A robot whose cost is 1 in every step in which it is too fast."""
    import gymnasium

    from cmdpkit.envs import WithCosts

    top, bare = SPEEDS[robot], gymnasium.make(f"{robot}-v5", **AS_PUBLISHED.get(robot, {}))
    if robot in ("Ant", "Humanoid"):
        return WithCosts(bare, lambda step: np.hypot(step.info["x_velocity"], step.info["y_velocity"]) > top)
    return WithCosts(bare, lambda step: step.info["x_velocity"] > top)


def run_once(
    case: tuple[str, str], seed: int, iterations: int, folder: Path, options: dict[str, Any]
) -> dict[str, Array]:
    """One run without an option set, continued from its checkpoint if there is one."""
    from cmdpkit.training import train

    robot, method = case
    env = partial(make, robot)
    result = train(env, method, [LIMIT], seed=seed, iterations=iterations, out=folder, **options)
    table = np.column_stack([result.history["reward"], result.history["costs"]])[:iterations]
    return {"table": table, "time": np.array(result.time), "steps": np.array(result.steps)}


def run(settings: Settings) -> None:
    if find_spec("mujoco") is None:
        raise ValueError("the robots need MuJoCo: pip install 'cmdpkit[mujoco]'")
    robots, seeds, iterations, folder = settings.robots or tuple(SPEEDS), min(SEEDS, settings.seeds), ITERATIONS, RUNS
    small: dict[str, Any] = {}
    if settings.quick:
        robots, seeds, iterations, folder = (
            settings.robots or ("Hopper", "Swimmer"),
            2,
            2,
            settings.folder / "velocity-runs",
        )
        small = {"steps": 50, "num_envs": 2, "hidden": [8]}
    cases = [(robot, method) for robot in robots for method in settings.methods]
    ends, curves = _known(settings.folder, iterations)
    wanted = [(case, seed) for case in cases for seed in range(FIRST, FIRST + seeds)]
    jobs = [
        (case, seed, iterations, _place(folder, *case, seed), small)
        for case, seed in wanted
        if (*case, seed) not in ends
    ]
    for (case, seed, *_), answer in zip(jobs, run_all(jobs, settings, "velocity", run_once), strict=True):
        last = answer["table"][-LAST:].mean(axis=0).round(3)
        ends[*case, seed] = (*last.tolist(), round(float(answer["time"]), 1), int(answer["steps"]))
        curves[case] = curves.get(case, NONE).joined(answer["table"])
    _write(settings.folder, ends, curves)


class Curves(NamedTuple):
    """Reward and cost (K, 2) of the iterations, over some seeds."""

    seeds: int
    mean: Any
    std: Any

    def joined(self, table: Array) -> Curves:
        """With one seed more."""
        n = self.seeds + 1
        away = table - self.mean
        # mean_n = mean + away/n,   n var_n = (n − 1) (var + away²/n)
        return Curves(n, self.mean + away / n, np.sqrt((n - 1) / n * (self.std**2 + away**2 / n)))


NONE = Curves(0, 0.0, 0.0)
Case = tuple[str, str]
"""Robot and method."""
Ends = dict[tuple[str, str, int], tuple[Any, ...]]
"""By robot, method and seed: reward and cost at the end, seconds, and steps."""


def _known(folder: Path, iterations: int) -> tuple[Ends, dict[Case, Curves]]:
    """The runs that the folder has, if they were as long. Their seeds are not run again."""
    if not (folder / DATA).exists():
        return {}, {}
    data, rows = read_csv(folder / DATA), read_csv(folder / SEEDS_DATA)
    if len(data["iteration"]) != iterations:
        return {}, {}
    ends: Ends = {
        (str(robot), str(method), int(seed)): (*numbers, int(steps))
        for robot, method, seed, *numbers, steps in zip(*rows.values(), strict=True)
    }
    curves = {}
    for case in {case[:2] for case in ends}:
        mean, std = (
            np.stack([data[" ".join((*case, quantity, what))] for quantity in ("reward", "cost")], axis=1)
            for what in ("mean", "std")
        )
        curves[case] = Curves(sum(end[:2] == case for end in ends), mean, std)
    return ends, curves


def _write(folder: Path, ends: Ends, curves: dict[Case, Curves]) -> None:
    columns: dict[str, Any] = {"iteration": np.arange(1, len(next(iter(curves.values())).mean) + 1)}
    for case in sorted(curves, key=_rank):
        for i, quantity in enumerate(("reward", "cost")):
            columns[" ".join((*case, quantity, "mean"))] = curves[case].mean[:, i].round(3)
            columns[" ".join((*case, quantity, "std"))] = curves[case].std[:, i].round(3)
    rows: dict[str, list[Any]] = {
        name: [] for name in ("robot", "method", "seed", "reward", "cost", "seconds", "steps")
    }
    for end in sorted(ends, key=lambda end: (_rank(end[:2]), end[2])):
        append_row(rows, (*end, *ends[end]))
    write_csv(folder / DATA, columns)
    write_csv(folder / SEEDS_DATA, rows)


def _rank(case: Case) -> int:
    """The order of robots, and of methods with PMD-PD in front."""
    robots, methods = list(SPEEDS), names("neural")
    return robots.index(case[0]) * len(methods) + methods.index(case[1])


def _place(folder: Path, robot: str, method: str, seed: int) -> Path:
    return folder / (f"{robot}-{seed}" if method == "pmd-pd" else f"{robot}-{method}-{seed}")


def plot(settings: Settings) -> None:
    data = read_csv(settings.folder / DATA)
    cases = [tuple(name.split(" ")[:2]) for name in data if name.endswith("reward mean")]
    robots, style = list(dict.fromkeys(robot for robot, _ in cases)), styles([method for _, method in cases])
    drawing, axes = figure(columns=2, rows=len(robots))
    for robot, method in cases:
        i = robots.index(robot)
        for j, quantity in enumerate(("reward", "cost")):
            mean, std = (data[f"{robot} {method} {quantity} {what}"] for what in ("mean", "std"))
            above = {"zorder": 3.0} if method == "pmd-pd" else {"lw": 0.8}
            curve(axes[i, j], data["iteration"], mean, style[method], method, **above)
            lowest = -np.inf if quantity == "reward" else 0.0
            if method == "pmd-pd":
                band(axes[i, j], data["iteration"], mean - std, mean + std, style[method], lowest, np.inf)
            axes[i, j].set(xlabel="policy iteration", ylabel=f"{quantity} of an episode", title=robot)
    for i in range(len(robots)):
        line = axes[i, 1].axhline(LIMIT, color="black", ls=(0, (4, 4)), linewidth=1.2, label="limit")
        axes[i, 1].legend(handles=[line])
    axes[0, 0].legend(loc="lower right")  # of all rows: beside the curves there is little room
    settings.save(drawing, "velocity")


def verdict(reward: Array, cost: Array, published: dict[str, tuple[float, float]]) -> str:
    """Whether a method earns at least as much as every published method within the limit, and keeps it within 10 %."""
    within = {name: earned for name, (earned, charged) in published.items() if charged <= LIMIT}
    missed = []
    if cost.mean() > 1.1 * LIMIT:
        missed.append(f"its cost is {cost.mean() - LIMIT:.1f} over the limit")
    if within and reward.mean() < max(within.values()):
        best = max(within, key=lambda name: within[name])
        missed.append(f"{best} earns {within[best] - reward.mean():.0f} more")
    collapsed = int((reward < 0.5 * np.median(reward)).sum())
    if collapsed:
        missed.append(f"{collapsed} of {len(reward)} seeds earn less than half of the median")
    if missed:
        return "does not: " + "; ".join(missed)
    return "holds" if within else "its limit is kept; no published figures at 10⁶ steps"


def section(settings: Settings) -> Section:
    runs = read_csv(settings.folder / SEEDS_DATA)
    claims = []
    for robot in dict.fromkeys(map(str, runs["robot"])):
        ends, steps = _ends(runs, robot), int(runs["steps"][runs["robot"] == robot].max())
        for method in [name for name in ends if name == "pmd-pd"] or list(ends):
            claims.append(_against_published(robot, method, *ends[method], steps))
        if "pmd-pd" in ends and len(ends) > 1:
            claims.append(_against_others(robot, ends))
    claims += _over_all(runs)
    figures = [("velocity.png", "Means over the seeds, and the deviation of PMD-PD; dashed: the limit.")]
    remarks = (
        "The velocity tasks of Safety-Gymnasium: Gymnasium's robots, a cost of 1 per step above the top speed, and "
        "episodes of 1,000 steps. Published figures are of OmniSafe's on-policy benchmark at 10⁶ steps, from tables "
        "(Ant, Humanoid) or curves (read to about ± 50). They are of version 4 of the robots: here Ant and Humanoid of "
        "version 5 observe and pay for what they do in version 4; Walker2d's feet have another friction "
        "([decisions.md](decisions.md)). Seeds start at 10. Constants were "
        "chosen on smaller ones, except for `least_deviation`: it followed two runs of Hopper that these replace."
    )
    return Section("Robots with a speed limit", claims, figures, remarks, _commands(runs))


def _ends(runs: dict[str, Array], robot: str) -> dict[str, tuple[Array, Array]]:
    """By method, reward and cost of every seed."""
    mine = runs["robot"] == robot
    where = {str(method): mine & (runs["method"] == method) for method in dict.fromkeys(runs["method"][mine])}
    return {method: (runs["reward"][here], runs["cost"][here]) for method, here in where.items()}


def _against_published(robot: str, method: str, reward: Array, cost: Array, steps: int) -> Claim:
    published = PUBLISHED.get(robot, {})
    others = ", ".join(f"{name} {earned:g}/{charged:g}" for name, (earned, charged) in published.items())
    return Claim(
        f"{robot}, at most {LIMIT:g} steps faster than {SPEEDS[robot]:g}: {method} without an option set "
        "earns as much as published methods that keep the limit (not in the paper)",
        f"reward/cost over the last {LAST} iterations, {reward.size} seeds: {reward.mean():.0f} ± "
        f"{reward.std():.0f}/{cost.mean():.1f} ± {cost.std():.1f} after {steps:,.0f} steps"
        + (f"; published at 10⁶: {others}" if others else ""),
        verdict(reward, cost, published),
    )


def _against_others(robot: str, ends: dict[str, tuple[Array, Array]]) -> Claim:
    """PMD-PD beside the library's other methods, on the seeds that all of them have."""
    seeds = min(reward.size for reward, _ in ends.values())
    ends = {name: (reward[:seeds], cost[:seeds]) for name, (reward, cost) in ends.items()}
    others, mine = {name: pair for name, pair in ends.items() if name != "pmd-pd"}, ends["pmd-pd"][0].mean()
    within = {name: reward.mean() for name, (reward, cost) in others.items() if cost.mean() <= 1.1 * LIMIT}
    better = [f"{name} earns {earned - mine:.0f} more" for name, earned in within.items() if earned > mine]
    listed = ", ".join(f"{name} {reward.mean():.0f}/{cost.mean():.1f}" for name, (reward, cost) in others.items())
    own = f"pmd-pd {mine:.0f}/{ends['pmd-pd'][1].mean():.1f}"
    return Claim(
        f"{robot}: it earns as much as the library's other methods that keep the limit within 10 %, without an option "
        "set",
        f"reward/cost, {seeds} seed{'s' if seeds > 1 else ''}: {own}, {listed}",
        ("does not: " + "; ".join(better) if better else "holds") + (" (one seed)" if seeds == 1 else ""),
    )


def _over_all(runs: dict[str, Array]) -> list[Claim]:
    """All methods on the runs that each of them has, in units of PMD-PD's reward of the same robot and seed."""
    names = ("robot", "method", "seed", "reward", "cost")
    ends = {
        (str(r), str(m), int(s)): (reward, cost) for r, m, s, reward, cost in zip(*map(runs.get, names), strict=True)
    }
    methods = list(dict.fromkeys(method for _, method, _ in ends))
    common = [(r, s) for r, m, s in ends if m == "pmd-pd" and all((r, other, s) in ends for other in methods)]
    if len(methods) < 2 or not common:
        return []
    told, better = [], []
    for method in methods:
        earned, cost = np.array([ends[r, method, s] for r, s in common]).T
        part = earned / np.array([ends[r, "pmd-pd", s][0] for r, s in common])
        kept = int((cost <= 1.1 * LIMIT).sum())
        told.append(f"{method} {part.mean():.2f} ({part.min():.2f}, {kept})")
        if method != "pmd-pd" and round(part.mean(), 2) > 1.0:  # as it is shown
            better.append(f"{method} earns {100.0 * (part.mean() - 1.0):.0f} % more")
    robots = len(dict.fromkeys(robot for robot, _ in common))
    return [
        Claim(
            "over all robots it earns as much as the library's other methods, without an option set",
            f"reward in units of pmd-pd's of the same robot and seed, {len(common)} runs of each method on {robots} "
            f"robot{'s' if robots > 1 else ''}: mean (least, and runs that keep the limit within 10 %): "
            + ", ".join(told),
            "does not: " + "; ".join(better) if better else "holds",
        )
    ]


def _commands(runs: dict[str, Array]) -> tuple[str, ...]:
    """The fewest commands, each for all robots and methods with the same number of seeds."""
    robots: dict[tuple[str, int], list[str]] = {}  # by method and number of seeds
    for robot in dict.fromkeys(map(str, runs["robot"])):
        for method, (reward, _) in _ends(runs, robot).items():
            robots.setdefault((method, reward.size), []).append(robot)
    methods: dict[tuple[int, tuple[str, ...]], list[str]] = {}
    for (method, seeds), where in robots.items():
        methods.setdefault((seeds, tuple(where)), []).append(method)
    return tuple(
        f"velocity --seeds {seeds}"
        + "".join(f" --robot {robot}" for robot in where)
        + "".join(f" --method {method}" for method in used if used != ["pmd-pd"])
        for (seeds, where), used in methods.items()
    )
