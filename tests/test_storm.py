"""Models of the model checker Storm, read and written. The tests need stormpy 2, which has wheels for Linux only."""

import numpy as np
import pytest

import cmdpkit as ck
from test_ways_in import assert_same, dense, random_model

stormpy = pytest.importorskip("stormpy", reason="stormpy is not installed: models of Storm are NOT tested here")
storm_files = pytest.importorskip("stormpy.examples.files")

PROGRAM = """
mdp
const int N;
module walk
  x : [0..N] init 0;
  [go] x<N -> 0.5 : (x'=x+1) + 0.5 : (x'=x);
  [] x<N -> true;
  [] x<N -> 0.1 : (x'=0) + 0.9 : (x'=x);
  [end] x=N -> true;
endmodule
rewards "height" x>0 : x; [go] true : 1.5; endrewards
label "top" = x=N;
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "walk.prism"
    path.write_text(PROGRAM)
    return path


def walk_by_hand(labels=True):
    p = [[0.5, 0.5, 0], [1, 0, 0], [1, 0, 0], [0, 0.5, 0.5], [0, 1, 0], [0.1, 0.9, 0], [0, 0, 1]]
    mask = np.array([[True, True, True, False], [True, True, True, False], [False, False, False, True]])
    return ck.CMDP(
        np.array(p, dtype=float),
        reward=[1.5, 0.0, 0.0, 2.5, 1.0, 1.0, 2.0],
        constraints=[ck.AtMost([0.0, 0.0, 1.0], 3.0, name="top")],
        gamma=0.9,
        initial=0,
        available=mask,
        state_labels=["x=0", "x=1", "x=2"] if labels else None,
        action_labels=["go", "choice 1", "choice 2", "end"],
    )


def from_storm(source, **changes):
    settings = {"reward": "height", "constraints": [ck.AtMost("top", 3.0)], "gamma": 0.9, **changes}
    return ck.CMDP.from_storm(source, **settings)


def test_storm_gives_the_model_built_by_hand(program):
    cmdp = from_storm(program, constants="N=2")
    assert_same(cmdp, walk_by_hand())
    assert_same(from_storm(str(program), constants={"N": 2}, initial="x=0"), walk_by_hand())
    result = ck.solve(cmdp)
    assert result.objective == pytest.approx(ck.solve(walk_by_hand(), "lp").objective, abs=1e-6)
    assert result.constraint_values[0] == pytest.approx(3.0, abs=1e-5)  # the limit binds


def test_storm_models_in_memory_and_in_every_format(program, tmp_path):
    prism, _ = stormpy.instantiate_constants(stormpy.parse_prism_program(program), "N=2")
    model = stormpy.build_model(prism, options=stormpy.BuilderOptions(build_full=True))
    assert_same(from_storm(model), walk_by_hand())
    stormpy.io.export_to_drn(model, tmp_path / "walk.drn")
    # In a DRN file the choices without a label share a name.
    drn = from_storm(tmp_path / "walk.drn")
    np.testing.assert_array_equal(dense(drn), dense(walk_by_hand()))
    np.testing.assert_array_equal(drn.costs, walk_by_hand().costs)
    stormpy.io.export_to_umb(model, tmp_path / "walk.umb")
    assert_same(from_storm(tmp_path / "walk.umb"), walk_by_hand())


def test_a_markov_chain_has_one_choice_per_state():
    cmdp = ck.CMDP.from_storm(storm_files.prism_dtmc_die, cost="coin_flips", gamma=0.5)
    assert (cmdp.states, cmdp.pairs.count) == (13, 13)
    # Three coins or more: 1 + γ + γ² and then, with probability 1/4 each round, two more
    value = ck.solve(cmdp).objective
    flips = 1.0 + 0.5 + 0.25  # a round; one path in four goes back to where one flip was made
    assert value == pytest.approx(1.0 + (flips - 1.0) / (1.0 - 0.25 * 0.25))


def test_jani_files_are_read(program, tmp_path):
    jani, _ = stormpy.parse_prism_program(program).to_jani([])
    stormpy.io.export_jani_to_file(tmp_path / "walk.jani", jani)
    cmdp = from_storm(tmp_path / "walk.jani", constants="N=2")
    # Storm lists the choices without a label first, and labels and locations are variables of the state as well.
    assert cmdp.action_labels == ("choice 0", "choice 1", "go", "end")
    assert [f"x={x}" in label for x, label in enumerate(cmdp.state_labels)] == [True] * 3
    rows = [1, 2, 0, 4, 5, 3, 6]
    np.testing.assert_array_equal(dense(cmdp), dense(walk_by_hand())[rows])
    np.testing.assert_array_equal(cmdp.costs, walk_by_hand().costs[:, rows])


def test_drn_files_are_read_by_storm_exactly(tmp_path):
    cmdp = random_model(4)
    cmdp.to_drn(tmp_path / "model.drn")
    back = ck.CMDP.from_storm(
        tmp_path / "model.drn",
        cost="cost",
        constraints=[ck.AtMost("heat", 3.0), ck.AtLeast("x", 0.1)],
        gamma=0.95,
    )
    assert back.state_labels is None
    order = [back.action_labels.index(label) for label in cmdp.action_labels]
    np.testing.assert_array_equal(back.pairs.mask[:, order], cmdp.pairs.mask)
    rows = back.pairs.find(cmdp.pairs.state, np.array(order)[cmdp.pairs.action])
    np.testing.assert_array_equal(dense(back)[rows], dense(cmdp))
    np.testing.assert_array_equal(back.costs[:, rows], cmdp.costs)
    np.testing.assert_array_equal(back.initial, cmdp.initial)
    with pytest.raises(ValueError, match=r"one initial state, but the initial distribution has 7.*initial=0"):
        ck.CMDP(np.eye(7)[:, None], reward=np.zeros(7), gamma=0.9).to_drn(tmp_path / "none.drn")


def test_words_of_drn_files(tmp_path):
    p, spaced = np.ones((1, 2, 1)), ["run fast", "rest [1]"]
    limit = ck.AtMost([[0, 1]], 1, name="heat, in K")
    cmdp = ck.CMDP(p, reward=[[1, 2]], constraints=[limit], gamma=0.5, action_labels=spaced, state_labels=["only\none"])
    cmdp.to_drn(tmp_path / "m.drn")
    back = ck.CMDP.from_storm(tmp_path / "m.drn", reward="reward", constraints=[ck.AtMost("heat__in_K", 1)], gamma=0.5)
    assert back.action_labels == ("run_fast", "rest__1_")
    np.testing.assert_array_equal(back.costs, cmdp.costs)
    twins = ck.CMDP(p, reward=[[1, 2]], gamma=0.5, action_labels=["a b", "a_b"])
    with pytest.raises(ValueError, match=r"actions that differ only in punctuation"):
        twins.to_drn(tmp_path / "n.drn")


def test_bad_storm_input_is_refused(program, tmp_path):
    with pytest.raises(ValueError, match=r"Storm cannot read .*undefined constants"):
        from_storm(program)
    with pytest.raises(ValueError, match=r"no reward model or label 'hight'; did you mean 'height'\?"):
        from_storm(program, constants="N=2", reward="hight")
    with pytest.raises(ValueError, match=r"initial names the state 'x=9'"):
        from_storm(program, constants="N=2", initial="x=9")
    with pytest.raises(ValueError, match=r"one of the two"):
        from_storm(program, constants="N=2", cost="height")
    (tmp_path / "m.drn").write_text("x")
    (tmp_path / "m.txt").write_text("x")
    with pytest.raises(ValueError, match=r"constants are for PRISM and JANI"):
        from_storm(tmp_path / "m.drn", constants="N=2")
    with pytest.raises(ValueError, match=r"Storm cannot read"):
        from_storm(tmp_path / "m.drn")
    with pytest.raises(FileNotFoundError, match=r"no such file"):
        from_storm(tmp_path / "none.prism")
    with pytest.raises(ValueError, match=r"not a file that Storm reads, judging by its name"):
        from_storm(tmp_path / "m.txt")
    with pytest.raises(TypeError, match=r"a path or a sparse model of stormpy"):
        from_storm(3)
    with pytest.raises(ValueError, match=r"the model is a CTMC"):
        from_storm(stormpy.build_model_from_drn(storm_files.drn_ctmc_dft))
