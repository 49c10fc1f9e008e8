"""The explorer without a browser: who may talk to it, what it accepts, and that newer requests win."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.evaluation.patience import cancelled, cancelled_by
from cmdpkit.insight.explorer.answers import Answers, Latest, Superseded
from cmdpkit.insight.explorer.app import Explorer
from cmdpkit.insight.explorer.dials import Desk
from cmdpkit.insight.explorer.serve import serving
from cmdpkit.problems.ranges import RANGES

PORT = 8123


@pytest.fixture(scope="module")
def explorer():
    return Explorer(Desk(ck.problems.paper(), "paper"), "paper", "", ["paper"], 5.0, PORT)


@pytest.fixture
def client(explorer):
    return explorer.app.server.test_client()


def get(client, path="/", **headers):
    return client.get(path, headers={"Host": f"127.0.0.1:{PORT}", **headers})


def call(explorer, values, **headers):
    """What a browser sends when the dials have these values."""
    name = next(key for key in explorer.app.callback_map if "headline.children" in key)
    outputs = [dict(zip(("id", "property"), part.split("."), strict=True)) for part in name.strip(".").split("...")]
    inputs = [
        {"id": {"index": i, "type": "dial"}, "property": "value", "value": value} for i, value in enumerate(values)
    ]
    body = {"output": name, "outputs": outputs, "inputs": [inputs], "state": [], "changedPropIds": []}
    return explorer.app.server.test_client().post(
        "/_dash-update-component", json=body, headers={"Host": f"127.0.0.1:{PORT}", **headers}
    )


def test_its_own_page_is_served(client):
    page = get(client)
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert "unsafe-eval" not in page.headers["Content-Security-Policy"]
    assert get(client, Origin=f"http://localhost:{PORT}").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": f"evil.example:{PORT}"},
        {"Host": "127.0.0.1:1"},
        {"Host": f"127.0.0.1.evil.example:{PORT}"},
        {"Origin": "http://evil.example"},
        {"Origin": f"https://127.0.0.1:{PORT}"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
@pytest.mark.parametrize("path", ["/", "/_dash-layout", "/_dash-dependencies"])
def test_requests_of_others_are_refused(client, headers, path):
    assert get(client, path, **headers).status_code == 403


def test_commands_of_other_pages_are_refused(explorer):
    assert call(explorer, [3.0], Origin="http://evil.example").status_code == 403
    assert call(explorer, [3.0], Host="evil.example").status_code == 403
    assert call(explorer, [3.0], Origin=f"http://127.0.0.1:{PORT}").status_code == 200


def test_a_form_of_another_page_is_no_json(client):
    answer = client.post("/_dash-update-component", data="x=1", headers={"Host": f"127.0.0.1:{PORT}"})
    assert answer.status_code == 415


@pytest.mark.parametrize(
    "value", [1e9, -1e9, "3.0", "__import__('os')", [3.0], {"a": 1}, True, float("nan"), float("inf"), 10**400]
)
def test_only_numbers_in_their_range_are_accepted(explorer, value):
    assert call(explorer, [value]).status_code == 400


@pytest.mark.parametrize("values", [[], [3.0, 3.0]])
def test_only_one_number_per_dial_is_accepted(explorer, values):
    assert call(explorer, values).status_code == 400


def test_an_empty_field_gets_a_message_and_keeps_the_answer(explorer):
    answer = call(explorer, [None])
    assert answer.status_code == 200
    found = json.loads(answer.data)["response"]
    assert set(found) == {"trouble"}
    assert "utility must be a number between" in found["trouble"]["children"]


def test_a_setting_is_answered_with_what_solve_finds(explorer):
    answer = call(explorer, [2.5])
    result = ck.solve(ck.problems.paper().with_limits(utility=2.5))
    cards = json.loads(answer.data)["response"]["cards"]["children"]
    parts = [part["props"] for card in cards for part in card["props"]["children"]]
    shown = {part["id"]: part["children"] for part in parts if "id" in part}
    assert float(shown["objective"]) == pytest.approx(result.objective, rel=1e-7)
    assert float(shown["bound"]) == pytest.approx(result.certificate.bound, rel=1e-7)


def test_large_requests_are_refused(client):
    answer = client.post("/_dash-update-component", json={"x": "y" * 2_000_000}, headers={"Host": f"127.0.0.1:{PORT}"})
    assert answer.status_code == 413


# -- dials ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ck.problems.CATALOGUE))
def test_every_parameter_can_be_moved_to_its_ends(name):
    """Small models only are made: the other dials stay where they are."""
    desk = Desk(ck.problems.CATALOGUE[name](), name, {}, 5.0)
    count = sum(dial.group == "limits" for dial in desk.dials)
    assert count == desk.base.num_constraints
    assert {dial.group for dial in desk.dials[count:]} <= {"parameters"}
    assert desk.model(desk.start).limits.tolist() == desk.base.limits.tolist()
    for i, dial in enumerate(desk.dials):
        assert dial.low <= dial.value <= dial.high
        for value in (dial.low, dial.high):
            setting = list(desk.start)
            setting[i] = value
            assert desk.check(setting) == tuple(setting)
            model = desk.model(tuple(setting))
            assert model.num_constraints == desk.base.num_constraints


def test_entries_of_a_list_have_dials_of_their_own():
    desk = Desk(ck.problems.two_queues(capacity=2), "two_queues", {"capacity": 2})
    names = [dial.name for dial in desk.dials]
    assert names[2:] == ["capacity", "arrivals 1", "arrivals 2", "holding 1", "holding 2", "gamma"]
    setting = list(desk.start)
    setting[names.index("arrivals 2")] = 0.3
    expected = ck.problems.two_queues(capacity=2, arrivals=(0.5, 0.3))
    assert (desk.model(tuple(setting)).transitions != expected.transitions).nnz == 0


def test_ranges_are_of_parameters_that_exist():
    from inspect import signature

    for name, ranges in RANGES.items():
        assert set(ranges) <= set(signature(ck.problems.CATALOGUE[name]).parameters)


def test_sliders_reach_beyond_what_can_be_met_and_what_binds():
    dial = Desk(ck.problems.paper()).dials[0]
    assert dial.low < 2.4176 < 4.525 < dial.high  # where the limit stops binding, and the most that is possible


def test_both_ends_of_between_have_a_dial():
    cmdp = ck.problems.paper()
    table = np.asarray(cmdp.constraints[0].values)
    both = ck.CMDP(
        np.asarray(cmdp.transitions).reshape(20, 10, 20), reward=cmdp.objective, gamma=0.8,
        constraints=[ck.Between(table, 2.0, 3.0, name="use"), ck.Equal(table, 2.5, name="same")],
    )  # fmt: skip
    desk = Desk(both)
    assert [dial.name for dial in desk.dials] == ["use, low", "use, high", "same"]
    moved = desk.model((2.2, 2.9, 2.6))
    assert [c.bound for c in moved.constraints] == [[2.2, 2.9], 2.6]
    with pytest.raises(ValueError, match="use"):
        desk.model((2.9, 2.2, 2.6))


def test_the_command_of_a_setting_leads_back_to_it(tmp_path):
    table = "state,action,next_state,probability,reward,wear\na,x,b,1,1,1\na,y,a,1,0,0\nb,x,a,1,0,0\n"
    path = tmp_path / "table.csv"
    path.write_text(table)
    from cmdpkit.cli.common import find_model

    cmdp = find_model(str(path), ("gamma=0.9",), ("wear<=2",))
    words = Desk(cmdp).command((1.5,), [str(path), "--set", "gamma=0.9"])
    assert words[-4:] == ["--set", "gamma=0.9", "--limit", "wear<=1.5"]
    assert find_model(str(path), (words[-3],), (words[-1],)).limits.tolist() == [1.5]
    given = {"capacity": 3}
    desk = Desk(ck.problems.two_queues(**given), "two_queues", given)
    words = desk.command((0.9, 0.8, 4.0, *desk.start[3:]), ["two_queues"])
    sets = [word for flag, word in pairwise(words) if flag == "--set"]
    limits = [word for flag, word in pairwise(words) if flag == "--limit"]
    again = find_model("two_queues", tuple(sets), tuple(limits))
    assert (again.states, again.limits.tolist()) == (25, [0.9, 0.8])


def test_a_model_without_anything_to_move_is_refused():
    with pytest.raises(ValueError, match="nothing to move"):
        Desk(ck.problems.paper().with_limits(utility=None))


# -- newer requests win -----------------------------------------------------------------------------------------------


def test_a_newer_job_cancels_the_one_before():
    latest, started, outcome = Latest(), threading.Event(), []

    def endless():
        started.set()
        late = time.monotonic() + 10.0
        while not cancelled() and time.monotonic() < late:
            time.sleep(0.001)

    def first():
        try:
            latest.run(endless)
        except Superseded:
            outcome.append("superseded")

    thread = threading.Thread(target=first)
    thread.start()
    assert started.wait(10)
    assert latest.run(lambda: 42) == 42
    thread.join(10)
    assert outcome == ["superseded"]


def test_a_curve_does_not_cancel_an_answer_but_an_answer_does_a_curve():
    latest, started = Latest(), threading.Event()
    seen = []

    def slow():
        started.set()
        for _ in range(50):
            seen.append(cancelled())
            time.sleep(0.002)
        return "answer"

    found = []
    thread = threading.Thread(target=lambda: found.append(latest.run(slow, kind=0)))
    thread.start()
    assert started.wait(10)
    assert latest.run(lambda: "curve", kind=1) == "curve"  # waits for its turn
    thread.join(10)
    assert found == ["answer"]
    assert not any(seen)
    with pytest.raises(Superseded):
        latest.run(latest.cancel, kind=1)


def test_a_long_solve_ends_when_nobody_waits():
    cmdp = ck.problems.garnet(states=3_000, actions=5, constraints=3, gamma=0.999, seed=3)
    gone = threading.Event()
    threading.Timer(0.3, gone.set).start()
    started = time.perf_counter()
    with cancelled_by(gone.is_set):
        result = ck.solve(cmdp, tol=1e-13, method="pmd-pd")
    assert result.status is ck.Status.INTERRUPTED
    assert time.perf_counter() - started < 20.0
    assert ck.solve(ck.problems.paper()).status is ck.Status.OPTIMAL  # afterwards nothing is cancelled any more


def test_work_ends_at_the_time_limit():
    cmdp = ck.problems.garnet(states=2_000, actions=5, constraints=3, gamma=0.99, seed=3)
    answers = Answers(Desk(cmdp, seconds=1.0), 0.0)
    assert answers.solve(answers.desk.start).status is ck.Status.TIME_LIMIT


def test_answers_start_from_the_last_one_and_are_as_good():
    desk = Desk(ck.problems.wireless(buffer=8, gamma=0.9), "wireless", {"buffer": 8, "gamma": 0.9})
    answers = Answers(desk, 10.0)
    for power in (1.2, 1.0, 0.8):
        setting = (power, *desk.start[1:])
        warm, cold = answers.solve(setting), ck.solve(desk.model(setting))
        assert warm.status is ck.Status.OPTIMAL
        assert warm.objective == pytest.approx(cold.objective, rel=1e-6)
    assert answers.solve(setting) is warm


# -- serving ----------------------------------------------------------------------------------------------------------


def test_it_listens_on_the_loopback_address_only():
    with serving(ck.problems.paper(), "paper") as (server, address):
        assert server.server_address[0] == "127.0.0.1"
        assert address.startswith("http://127.0.0.1:")


def test_a_busy_port_is_told_at_once():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with (
            pytest.raises(OSError, match="choose another one, or 0"),
            serving(ck.problems.paper(), port=taken.getsockname()[1]),
        ):
            pass


def test_the_command_serves_until_ctrl_c():
    command = [sys.executable, "-m", "cmdpkit", "explore", "paper", "--port", "0"]
    settings: dict[str, Any] = {"env": os.environ | {"PYTHONUNBUFFERED": "1"}, "text": True}
    # What is started in the background of a script ignores Ctrl-C
    settings["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **settings) as run:
        address = re.search(r"http://127\.0\.0\.1:\d+/", run.stdout.readline()).group()
        with urllib.request.urlopen(address, timeout=30) as page:
            assert b"paper" in page.read()
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(urllib.request.Request(address, headers={"Host": "evil.example"}), timeout=30)
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=30)
    assert run.returncode == 0
    assert out == "stopped\n"
    assert err == ""


def test_without_dash_it_says_what_to_install(monkeypatch):
    from cmdpkit.insight.explorer import serve

    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'cmdpkit\[look\]'"), serving(ck.problems.paper()):
        pass
