"""The explorer in a real browser: sliders moved, numbers read back and compared with `solve`."""

import threading
import time

import pytest

import cmdpkit as ck
from browsing import watched_page
from cmdpkit.insight.explorer.serve import serving

SETTINGS = {"buffer": 6, "gamma": 0.9, "power_limit": 1.0, "backlog_limit": 3.0}


def number(text):
    return float(text.replace("−", "-").replace(",", ""))


@pytest.fixture(scope="module")
def model():
    return ck.problems.wireless(**SETTINGS)


@pytest.fixture(scope="module")
def page(model, browser):
    with serving(model, "wireless", SETTINGS, "wireless", "A transmitter", ["wireless"]) as (server, address):
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        with watched_page(browser) as found:
            found.goto(address)
            yield found
        server.shutdown()
        thread.join(10)


def dial(page, name):
    """The number field and the handle of the slider with this name."""
    box = page.locator(".dial", has=page.get_by_text(name, exact=True))
    return box.locator("input"), box.get_by_role("slider")


def set_dial(page, name, value):
    field, _ = dial(page, name)
    field.fill(str(value))
    field.press("Enter")


def settle(page, objective):
    """Wait until the page shows this objective, and return what it shows."""
    for _ in range(300):
        if page.locator("#objective").count():
            shown = number(page.inner_text("#objective"))
            if shown == pytest.approx(objective, rel=1e-6, abs=1e-9):
                return shown
        page.wait_for_timeout(100)
    raise AssertionError(f"the page shows {page.inner_text('#objective')}, not {objective}")


def reset(page, model):
    # The page may show this objective before the click: a dial moved too early would be reset as well
    with page.expect_response(lambda response: "reset.n_clicks" in (response.request.post_data or "")):
        page.click("#reset")
    settle(page, ck.solve(model).objective)


def test_the_page_shows_what_solve_finds(page, model):
    result = ck.solve(model)
    settle(page, result.objective)
    assert page.inner_text("#status") == "✓ optimal"
    assert number(page.inner_text("#bound")) == pytest.approx(result.certificate.bound, rel=1e-6)
    rows = page.eval_on_selector_all(
        "#limits-table tbody tr", "found => found.map(tr => [...tr.children].map(td => td.innerText))"
    )
    assert [row[0] for row in rows] == ["power per step", "backlog per step"]
    assert [number(row[2]) for row in rows] == pytest.approx(result.constraint_values, rel=1e-4)
    assert [number(row[4]) for row in rows] == pytest.approx(result.multipliers, rel=1e-3, abs=1e-6)
    page.wait_for_selector("#frontier .main-svg")
    page.wait_for_selector("#policy .main-svg")
    page.get_by_text("The optimum is proved to lie in the band").wait_for()


def test_a_number_is_typed_and_solved(page, model):
    reset(page, model)
    set_dial(page, "power per step", 0.8)
    result = ck.solve(model.with_limits(power=0.8))
    settle(page, result.objective)
    _, handle = dial(page, "power per step")
    assert float(handle.get_attribute("aria-valuenow")) == pytest.approx(0.8, abs=0.05)


def test_a_slider_is_moved_and_solved(page, model):
    reset(page, model)
    field, handle = dial(page, "backlog per step")
    before = float(field.input_value())
    handle.focus()
    for _ in range(5):
        handle.press("ArrowRight")
    for _ in range(100):
        if float(field.input_value()) > before:
            break
        page.wait_for_timeout(50)
    page.wait_for_timeout(300)
    after = float(field.input_value())
    assert after > before
    settle(page, ck.solve(model.with_limits(backlog=after)).objective)


def test_a_parameter_is_moved_and_solved(page, model):
    reset(page, model)
    set_dial(page, "fading", 0.1)
    other = ck.problems.wireless(**SETTINGS, fading=0.1)
    settle(page, ck.solve(other).objective)
    set_dial(page, "buffer", 8)
    settle(page, ck.solve(ck.problems.wireless(**SETTINGS | {"buffer": 8}, fading=0.1)).objective)


def test_what_cannot_be_met_is_shown_as_such(page, model):
    reset(page, model)
    field, _ = dial(page, "backlog per step")
    lowest = float(field.get_attribute("min"))
    assert ck.solve(model.with_limits(backlog=lowest)).status.name == "INFEASIBLE"
    set_dial(page, "backlog per step", lowest)
    page.get_by_text("✕ infeasible").wait_for()
    page.get_by_label("backlog", exact=True).check()
    for _ in range(200):
        notes = page.locator("#frontier .annotation-text").all_text_contents()
        if "proved infeasible" in notes and "backlog" in page.inner_text("#frontier-words"):
            break
        page.wait_for_timeout(100)
    assert "proved infeasible" in page.locator("#frontier .annotation-text").all_text_contents()
    # The line of the limit lies in the infeasible part
    shapes = page.evaluate("document.querySelector('#frontier .js-plotly-plot').layout.shapes")
    line = next(shape for shape in shapes if shape["type"] == "line")
    area = next(shape for shape in shapes if shape["type"] == "rect")
    assert area["x0"] <= line["x0"] <= area["x1"]


def test_numbers_outside_of_the_range_are_refused(page, model):
    reset(page, model)
    before = page.inner_text("#objective")
    set_dial(page, "power per step", 1e9)
    page.get_by_text("power per step must be a number between").wait_for()
    assert page.inner_text("#objective") == before


def test_two_settings_are_pinned_side_by_side(page, model):
    reset(page, model)
    page.click("#pin-A")
    page.wait_for_selector("#pins-table")
    set_dial(page, "power per step", 0.7)
    other = ck.solve(model.with_limits(power=0.7))
    settle(page, other.objective)
    page.click("#pin-B")
    page.locator("#pins-table th", has_text="B").wait_for()
    rows = page.eval_on_selector_all(
        "#pins-table tr", "found => found.map(tr => [...tr.children].map(td => td.innerText))"
    )
    assert rows[0] == ["", "on screen", "A", "B"]
    objective = next(row for row in rows if row[0] == "reward")
    assert [number(x) for x in objective[2:]] == pytest.approx([ck.solve(model).objective, other.objective], rel=1e-6)
    power = next(row for row in rows if row[0] == "power per step")
    assert [number(x) for x in power[1:]] == [0.7, 1.0, 0.7]


def test_a_setting_is_saved_as_model_policy_and_report(page, model, tmp_path):
    reset(page, model)
    set_dial(page, "power per step", 0.9)
    wanted = model.with_limits(power=0.9)
    result = ck.solve(wanted)
    settle(page, result.objective)
    for name in ("model", "policy", "report"):
        with page.expect_download() as found:
            page.click(f"#save-{name}")
        found.value.save_as(tmp_path / found.value.suggested_filename)
    saved = ck.CMDP.load(tmp_path / "wireless-model.npz")
    assert saved.limits.tolist() == wanted.limits.tolist()
    policy = ck.TabularPolicy.load(tmp_path / "wireless-policy.npz")
    assert ck.evaluate(saved, policy).objective == pytest.approx(result.objective, rel=1e-6)
    text = (tmp_path / "wireless-report.html").read_text()
    assert "--limit power=0.9" in text
    assert "--set buffer=6" in text


def test_the_last_answer_stays_until_the_next_and_a_newer_request_wins(page, model, monkeypatch):
    from cmdpkit.evaluation.patience import cancelled
    from cmdpkit.insight.explorer import answers

    reset(page, model)
    before = page.inner_text("#objective")
    go_on, ended = threading.Event(), []

    def slow(cmdp, **settings):
        while not (go_on.is_set() or cancelled()):
            time.sleep(0.01)
        ended.append((float(cmdp.limits[0]), cancelled()))
        return ck.solve(cmdp, **settings)

    monkeypatch.setattr(answers, "solve", slow)
    set_dial(page, "power per step", 0.61)
    page.wait_for_selector('#headline[data-dash-is-loading="true"]')
    spinner = "getComputedStyle(document.getElementById('headline'), '::after').animationName"
    assert page.evaluate(spinner) == "turn"
    assert page.inner_text("#objective") == before
    set_dial(page, "power per step", 0.62)
    for _ in range(200):
        if ended:
            break
        page.wait_for_timeout(50)
    assert ended == [(0.61, True)]
    assert page.inner_text("#objective") == before
    go_on.set()
    settle(page, ck.solve(model.with_limits(power=0.62)).objective)
    assert ended == [(0.61, True), (0.62, False)]


def test_it_fits_a_telephone(page):
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_timeout(500)
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    assert page.screenshot().startswith(b"\x89PNG")
