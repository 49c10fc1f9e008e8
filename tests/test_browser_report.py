"""Reports in a real browser: read back, filtered, printed, and nothing fetched from elsewhere."""

import re
import time

import numpy as np
import pytest

import cmdpkit as ck
from browsing import watched_page
from cmdpkit.problems.places import places_of

EVIL = "<script>window.hacked = 1</script>"
EVIL_NAME = '"><img src=x onerror="window.hacked = 2">'
EVIL_ACTION = "</script><b>bold</b>"


def open_report(page, path, figures=True):
    """Without its figures a page is open much sooner: Plotly takes a second or two."""
    if not figures:
        text = path.read_text()
        path.write_text(re.sub(r'<script type="text/plain" id="plotly">[^<]*</script>', "", text))
    page.goto(path.as_uri())
    if not figures:
        return page
    page.wait_for_selector("html[data-drawn]")
    assert page.evaluate("document.documentElement.dataset.drawn") == "yes"
    return page


def rows(page):
    """The rows of the policy's table that are in the document, as lists of text."""
    return page.eval_on_selector_all(
        "#policy-rows tr", "found => found.map(tr => [...tr.children].map(td => td.innerText.trim()))"
    )


def overflow(page):
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


def number(text):
    return float(text.replace("−", "-").replace(",", ""))


@pytest.fixture(scope="module")
def queues(tmp_path_factory):
    settings = {"capacity": 5, "gamma": 0.9, "power_limit": 0.7, "length_limit": 0.5}
    result = ck.solve(ck.problems.two_queues(**settings))
    path = tmp_path_factory.mktemp("report") / "queues.html"
    result.report(path, axes=places_of("two_queues", settings), title="Two queues", command="cmdpkit report two_queues")
    return result, path


@pytest.fixture(scope="module")
def queues_page(queues, browser):
    with watched_page(browser) as found:
        yield open_report(found, queues[1])


def test_the_page_says_what_solve_found(queues, queues_page):
    result, page = queues[0], queues_page
    shown = page.eval_on_selector_all(".card .number", "found => found.map(x => x.innerText)")
    assert number(shown[0]) == pytest.approx(result.objective, rel=1e-6)
    assert number(shown[1]) == pytest.approx(result.certificate.bound, rel=1e-6)
    table = page.eval_on_selector_all(
        "#limits tbody tr", "found => found.map(tr => [...tr.children].map(td => td.innerText))"
    )
    assert [row[0] for row in table] == ["power per step", "length 2 per step"]
    assert [number(row[2]) for row in table] == pytest.approx(result.constraint_values, rel=1e-4)
    assert [number(row[4]) for row in table] == pytest.approx(result.multipliers, rel=1e-4, abs=1e-9)
    assert "✓ optimal" in page.inner_text("header")
    assert "cmdpkit report two_queues" in page.inner_text("#reproduce")
    assert overflow(page) <= 0


def test_figures_are_drawn_and_the_frontier_is_certified(queues, queues_page):
    result, page = queues[0], queues_page
    assert page.evaluate("document.querySelectorAll('.plot .main-svg').length") >= 4
    point = page.evaluate("document.getElementById('figure-0').data.find(x => x.name === 'this policy')")
    assert point["x"][0] == result.model.limits[0]
    assert point["y"][0] == pytest.approx(result.objective, rel=1e-9)
    band = page.evaluate("document.getElementById('figure-0').data.slice(0, 2).map(x => [x.x, x.y])")
    (x, low), (_, high) = band
    for at in np.linspace(x[0], x[-1], 5):
        optimum = ck.solve(result.model.with_limits(power=float(at))).objective
        assert np.interp(at, x, low) <= optimum * (1 + 1e-6)
        assert np.interp(at, x, high) >= optimum * (1 - 1e-6)
    heat = page.evaluate("[...document.querySelectorAll('.plot')].map(p => p.data[0].type)")
    assert heat.count("heatmap") == 2


def test_the_policy_is_filtered(queues, queues_page):
    result, page = queues[0], queues_page
    policy = result.policy
    visits = ck.evaluate(result.model, policy).occupancy.sum(axis=1)
    shown = [int(row[0].split()[0]) for row in rows(page)]
    assert len(shown) == 25
    assert visits[shown] == pytest.approx(np.sort(visits)[::-1][:25], rel=1e-3)
    page.click("#after")
    assert len(rows(page)) == 36 - 25
    page.check("#mixed")
    mixed = policy.randomised_states()
    assert sorted(int(row[0].split()[0]) for row in rows(page)) == mixed
    assert all("randomised" in row[0] for row in rows(page))
    first = rows(page)[0]
    state = int(first[0].split()[0])
    played = {int(a): float(p) / 100 for a, p in re.findall(r"(\d+)\s+([\d.]+) %", first[1])}
    assert played == pytest.approx(policy[state], rel=1e-3)
    page.uncheck("#mixed")
    page.fill("#find", "queue 1 5, queue 2 0")
    assert [row[0].split()[0] for row in rows(page)] == ["30"]
    page.fill("#find", "no such state")
    assert page.inner_text("#count") == "no row matches"
    page.fill("#find", "")
    page.select_option("#action", "8")
    expected = int((policy.probabilities[:, 8] > 1e-9).sum())
    assert page.inner_text("#count").endswith(f"of {expected} rows")


def test_it_fits_a_telephone_and_prints(queues_page):
    page = queues_page
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_timeout(500)  # figures follow the width of the window
    assert overflow(page) <= 0
    widths = page.eval_on_selector_all(".plot", "found => found.map(x => x.querySelector('.main-svg').clientWidth)")
    assert max(widths) <= 390
    printed = page.pdf(format="A4", print_background=True)
    assert printed.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) >= 2
    assert page.screenshot().startswith(b"\x89PNG")


def test_text_of_users_is_only_text(page, tmp_path):
    table = {
        "state": [EVIL, EVIL, "calm"],
        "action": [EVIL_ACTION, "rest", "rest"],
        "next_state": ["calm", EVIL, EVIL],
        "probability": [1.0, 1.0, 1.0],
        "reward": [1.0, 0.0, 0.5],
        "wear": [1.0, 0.0, 0.0],
    }
    limit = ck.AtMost("wear", 1.5, name=EVIL_NAME)
    cmdp = ck.CMDP.from_table(table, constraints=[limit], gamma=0.9, initial=EVIL)
    path = tmp_path / "evil.html"
    ck.solve(cmdp).report(path, title=EVIL, subtitle=EVIL_NAME, command=EVIL)
    open_report(page, path)
    assert page.evaluate("window.hacked") is None
    assert page.inner_text("h1") == EVIL
    assert EVIL in {row[0].split("\n")[0].removesuffix(" randomised") for row in rows(page)}
    assert EVIL_NAME in page.inner_text("#limits")
    assert page.evaluate("document.querySelectorAll('img, b, main script').length") == 0
    page.fill("#find", EVIL_ACTION)
    assert len(rows(page)) == 1
    assert page.evaluate("document.querySelector('#policy-rows b')") is None


def first_paint(page, path):
    """Milliseconds from opening a page to its first text."""
    page.goto(path.as_uri())
    page.wait_for_selector("#policy-rows tr")
    for _ in range(100):
        entries = page.evaluate("performance.getEntriesByName('first-contentful-paint').map(x => x.startTime)")
        if entries:
            return entries[0]
        page.wait_for_timeout(50)
    raise AssertionError("nothing was painted")


@pytest.mark.slow
def test_ten_thousand_states_stay_fluid(page, tmp_path):
    """At most 5 MB, first paint within two seconds, and a filter that answers at once."""
    side = 100
    labels = [divmod(i, side) for i in range(side * side)]
    cmdp = ck.problems.garnet(states=side * side, actions=4, constraints=2, seed=1)
    named = ck.CMDP(
        cmdp.transitions, reward=cmdp.objective, constraints=cmdp.constraints, gamma=0.95, state_labels=labels
    )
    path = tmp_path / "large.html"
    ck.solve(named, tol=1e-4).report(path, frontiers=False)
    assert path.stat().st_size <= 5_000_000
    assert min(first_paint(page, path) for _ in range(2)) <= 2_000.0  # others may use the machine at the same time
    started = time.perf_counter()
    page.fill("#find", "(42, 7)")
    assert rows(page)[0][0] == "(42, 7)"
    assert time.perf_counter() - started < 2.0
    assert page.inner_text("#count").endswith("of 1 rows")
    page.wait_for_selector("html[data-drawn=yes]")


def test_the_stages_of_a_horizon_have_a_slider(page, tmp_path):
    result = ck.solve(ck.problems.epidemic(people=6, weeks=5, beds=2))
    path = tmp_path / "epidemic.html"
    result.report(path, frontiers=False)
    open_report(page, path, figures=False)
    for stage in (0, 3):
        page.evaluate(
            "t => { const s = document.getElementById('stage'); s.value = t; s.dispatchEvent(new Event('input')); }",
            stage,
        )
        shown = rows(page)
        assert {row[0] for row in shown} == {str(stage)}
        assert len(shown) == result.model.states
        table = result.policy.at(stage)
        for _, state, action, _ in shown:
            best = max(table[int(state.split()[0])].items(), key=lambda item: item[1])[0]
            assert action.split()[0] == str(best)
    page.check("#all-stages")
    assert page.inner_text("#count").endswith("of 35 rows")


def test_what_to_relax_is_said(page, tmp_path):
    path = tmp_path / "infeasible.html"
    cmdp = ck.problems.paper().with_limits(utility=6.0)
    result = ck.solve(cmdp)
    result.report(path)
    open_report(page, path, figures=False)
    found = ck.diagnose(cmdp)
    assert "✕ infeasible" in page.inner_text("header")
    relaxed = number(page.inner_text("#relax tbody td:last-child").removeprefix(">= "))
    assert relaxed == pytest.approx(found.relaxations["utility"].attained, abs=1e-4)


def test_training_runs_are_drawn_together(page, tmp_path):
    settings = {"limits": [50.0, 50.0], "iterations": 4, "hidden": [8], "steps": 20, "num_envs": 2}
    env = "cmdpkit/ConstrainedAcrobot-v0"
    runs = [
        ck.train(env, method, seed=seed, **settings) for method, seed in (("pmd-pd", 0), ("pmd-pd", 1), ("crpo", 0))
    ]
    proofs = [ck.certify_on_episodes(env, run.policy, [50.0, 50.0], episodes=20, steps=20) for run in runs]
    path = tmp_path / "runs.html"
    ck.write_report(runs, path, certificates=proofs, title="Acrobot", seed=0)
    open_report(page, path)
    assert page.eval_on_selector_all("#runs tbody tr", "found => found.length") == 3
    verdicts = page.eval_on_selector_all("#verdicts td:last-child", "found => found.map(x => x.innerText)")
    assert [v for v in verdicts if v] == [v for proof in proofs for v in proof.verdicts]
    curves = page.evaluate("document.getElementById('figure-0').data.map(x => x.name)")
    assert curves == ["pmd-pd, run 1", "pmd-pd, run 2", "pmd-pd", "crpo"]
    reward = page.evaluate("document.getElementById('figure-0').data[0].y")
    expected = np.cumsum(runs[0].history["objective"]) / np.arange(1, 5)
    assert reward == pytest.approx(expected, rel=1e-4)
    limit = page.evaluate("document.getElementById('figure-1').layout.shapes[0].y0")
    assert limit == 50.0
    assert overflow(page) <= 0
