"""Totals until a goal, judged by the model checker Storm: multi-objective queries with two and three objectives."""

import numpy as np
import pytest

import cmdpkit as ck

stormpy = pytest.importorskip("stormpy", reason="stormpy is not installed: totals are NOT judged by Storm here")

PRECISION = 1e-5

COURIER = """
mdp
module courier
  x : [0..6] init 0;
  done : bool init false;
  [walk] !done & x<6 -> 0.7 : (x'=x+1) + 0.3 : true;
  [ride] !done & x<5 -> 0.6 : (x'=x+2) + 0.3 : true + 0.1 : (x'=max(x-1,0));
  [arrive] !done & x=6 -> (done'=true);
  [rest] done -> true;
endmodule
rewards "time" [walk] true : 2; [ride] true : 1; endrewards
rewards "fuel" [ride] true : 1; endrewards
rewards "steps" !done : 1; endrewards
"""

TASKS = """
mdp
module jobs
  left : [0..4] init 4;
  worn : [0..2] init 0;
  [slow] left>0 -> 0.8 : (left'=left-1) + 0.2 : true;
  [fast] left>0 & worn<2 -> 0.75 : (left'=left-1) & (worn'=worn+1) + 0.25 : (left'=left-1);
  [mend] left>0 & worn>0 -> 0.9 : (worn'=0) + 0.1 : (left'=left-1);
  [stop] left=0 -> true;
endmodule
rewards "time" [slow] true : 3; [fast] true : 1; [mend] true : 0.5; endrewards
rewards "energy" [slow] true : 1; [fast] left>0 : 2+worn; endrewards
rewards "repairs" [mend] true : 1; endrewards
"""

MISSION = """
mdp
module rover
  far : [0..3] init 3;
  dust : bool init false;
  over : bool init false;
  [drive] !over & far>0 & !dust -> 0.8 : (far'=far-1) + 0.15 : (dust'=true) + 0.05 : (over'=true);
  [creep] !over & far>0 -> 0.5 : (far'=far-1) + 0.48 : true + 0.02 : (over'=true);
  [wipe] !over & dust -> 0.9 : (dust'=false) + 0.1 : (over'=true);
  [sample] !over & far=0 -> (over'=true);
  [off] over -> true;
endmodule
rewards "samples" [sample] true : 1; endrewards
rewards "hours" [drive] true : 1; [creep] true : 2; [wipe] true : 1.5; endrewards
rewards "power" [drive] true : 3; [creep] true : 1; [wipe] true : 0.5; endrewards
"""

PROGRAMS = {
    "courier": (COURIER, ("cost", "time"), [("fuel", "steps")]),
    "tasks": (TASKS, ("cost", "time"), [("energy", "repairs")]),
    "mission": (MISSION, ("reward", "samples"), [("hours", "power")]),
}


def storm_optimum(model, formula, program=None):
    """The value that Storm finds from the initial state; None if it says that the limits cannot be met."""
    (prop,) = stormpy.parse_properties(formula, program) if program else stormpy.parse_properties(formula)
    environment = stormpy.Environment()
    environment.modelchecker().multi().precision = stormpy.Rational(PRECISION)
    answer = stormpy.model_checking(model, prop, environment=environment)
    start = model.initial_states[0]
    return float(answer.get_value(start)) if hasattr(answer, "get_value") else None


def query(kind, objective, limits):
    wanted = f'R{{"{objective}"}}{"max" if kind == "reward" else "min"}=? [C]'
    bounds = [f'R{{"{name}"}}<={limit:.17g} [C]' for name, limit in limits.items()]
    return f"multi({', '.join([wanted, *bounds])})"


def agree(cmdp, optimum):
    result = ck.solve(cmdp)
    if optimum is None:
        assert result.status is ck.Status.INFEASIBLE
        return
    assert result.status is ck.Status.OPTIMAL
    assert result.objective == pytest.approx(optimum, rel=3 * PRECISION, abs=3 * PRECISION)


@pytest.mark.parametrize("name", PROGRAMS)
def test_prism_models(name, tmp_path):
    text, (kind, objective), ((first, second),) = PROGRAMS[name]
    path = tmp_path / "model.prism"
    path.write_text(text)
    program = stormpy.parse_prism_program(str(path))
    free = ck.CMDP.from_storm(path, gamma=0.5, **{kind: objective}).with_criterion(gamma=1)
    tables = ck.CMDP.from_storm(
        path, gamma=0.5, constraints=[ck.AtMost(first, 0.0), ck.AtMost(second, 0.0)], **{kind: objective}
    )
    totals = tables.with_criterion(gamma=1)
    at_best = ck.evaluate(totals, ck.solve(free).policy).constraint_values
    sparing = ck.solve(free.with_objective(cost=tables.constraints[0].values)).policy
    at_least = ck.evaluate(totals, sparing).constraint_values
    judged = []
    for share, count in ((0.5, 1), (0.9, 1), (0.3, 2), (0.6, 2), (0.9, 2), (-0.1, 1), (-0.1, 2)):
        values = (at_least + share * (at_best - at_least)).tolist()  # of a mixture of both policies, unless share < 0
        limits = dict(list(zip((first, second), values, strict=True))[:count])
        cmdp = ck.CMDP.from_storm(
            path, gamma=0.5, constraints=[ck.AtMost(n, v) for n, v in limits.items()], **{kind: objective}
        ).with_criterion(gamma=1)
        formula = query(kind, objective, limits)
        prop = stormpy.parse_properties(formula, program)
        judged.append(storm_optimum(stormpy.build_model(program, prop), formula, program))
        agree(cmdp, judged[-1])
    assert [value is None for value in judged] == [False] * 5 + [True] * 2


@pytest.mark.parametrize("seed", range(30))
def test_random_models(seed, tmp_path):
    """Costs are not negative, as Storm wants; limits between what is possible and what the optimum uses."""
    rng = np.random.default_rng(seed)
    S, A, m = int(rng.integers(3, 9)), int(rng.integers(2, 4)), 1 + seed % 2
    P = np.zeros((S, A, S))
    P[: S - 1] = 0.85 * rng.dirichlet(np.full(S, 0.5), (S - 1, A))
    P[: S - 1, :, S - 1] += 0.15
    P[S - 1, :, S - 1] = 1.0
    tables = rng.random((m + 1, S, A))
    tables[:, S - 1] = 0.0
    kind = "reward" if rng.random() < 0.5 else "cost"
    names = [f"used{i}" for i in range(m)]
    limits = [ck.AtMost(table, 1e9, name=name) for table, name in zip(tables[1:], names, strict=True)]
    cmdp = ck.CMDP(P, gamma=1, initial=0, action_axis=1, constraints=limits, **{kind: tables[0]})
    used = ck.solve(cmdp).constraint_values
    least = np.array([ck.solve(cmdp.with_objective(cost=table)).objective for table in tables[1:]])
    share = rng.uniform(-0.1 if seed % 5 == 4 else 0.3, -0.05 if seed % 5 == 4 else 0.95, m)
    bounds = dict(zip(names, (least + share * (used - least)).tolist(), strict=True))
    cmdp.to_drn(tmp_path / "model.drn")
    model = stormpy.build_model_from_drn(str(tmp_path / "model.drn"))
    agree(cmdp.with_limits(bounds), storm_optimum(model, query(kind, kind, bounds)))
