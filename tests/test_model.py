"""The model: what it accepts, how it becomes the convention, that it is frozen, its files, and every refusal."""

from __future__ import annotations

import gc
import io
import os
import pickle
import re
import tempfile
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import cmdpkit as ck

S, A = 3, 2

# P[s, a]: every row sums to one exactly (dyadic fractions), so that equalities below can be exact.
P = np.array(
    [
        [[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]],
        [[0.125, 0.375, 0.5], [1.0, 0.0, 0.0]],
        [[0.0, 0.0, 1.0], [0.75, 0.0, 0.25]],
    ]
)
R = np.array([[1.0, -2.0], [0.5, 0.0], [4.0, 3.0]])
C = np.array([[0.0, 1.0], [2.0, 0.25], [-1.0, 8.0]])
G = np.array([[3.0, 0.0], [-0.5, 1.0], [1.0, 2.0]])
RHO = np.array([0.5, 0.125, 0.375])


def model(**changes):
    """A valid model, with some arguments changed; `reward=None` leaves the reward out."""
    arguments = {"transitions": P, "reward": R, "constraints": [], "gamma": 0.75, "initial": RHO} | changes
    return ck.CMDP(arguments.pop("transitions"), **arguments)


def rich_model(**changes):
    """Both senses, both kinds of limit, names that no ASCII can hold."""
    constraints = [
        ck.AtMost(C / 3.0, 5.0, name="電力 ≤ Grenze"),
        ck.AtLeast(G, -0.1, name="  Nutzen🔋\n", per_step=True),
        ck.AtMost(-C, 1e-300),
    ]
    return model(**({"constraints": constraints} | changes))


def changed(array, index, value):
    array = np.array(array, dtype=float)
    array[index] = value
    return array


def sparse(array=P, kind=sp.csr_array):
    return kind(np.asarray(array).reshape(-1, np.shape(array)[-1]))


def assert_same(one: ck.CMDP, other: ck.CMDP) -> None:
    """Equal bit for bit, in everything that the user stated and everything made of it."""
    assert (one.states, one.actions, one.num_constraints) == (other.states, other.actions, other.num_constraints)
    assert (one.gamma, one.maximise, one.row_sums, one.names) == (
        other.gamma,
        other.maximise,
        other.row_sums,
        other.names,
    )
    assert sp.issparse(one.transitions) == sp.issparse(other.transitions)
    pairs = [(getattr(one, a), getattr(other, a)) for a in ("objective", "initial", "costs", "signs", "offsets")]
    pairs.append((one.limits, other.limits))
    if sp.issparse(one.transitions):
        pairs += [(getattr(one.transitions, a), getattr(other.transitions, a)) for a in ("data", "indices", "indptr")]
    else:
        pairs.append((one.transitions, other.transitions))
    for mine, theirs in zip(one.constraints, other.constraints, strict=True):
        assert type(mine) is type(theirs)
        assert (mine.bound, mine.name, mine.per_step) == (theirs.bound, theirs.name, theirs.per_step)
        pairs.append((mine.values, theirs.values))
    for a, b in pairs:
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


# -- construction ----------------------------------------------------------------------------------------------------


def test_dense_transitions_become_one_row_a_pair():
    cmdp = model()
    assert (cmdp.states, cmdp.actions, cmdp.num_constraints) == (S, A, 0)
    assert cmdp.transitions.dtype == np.float64
    for s in range(S):
        for a in range(A):
            np.testing.assert_array_equal(cmdp.transitions[s * A + a], P[s, a])


@pytest.mark.parametrize("kind", [sp.csr_array, sp.csc_array, sp.coo_array, sp.csr_matrix, sp.lil_array])
def test_sparse_transitions_are_the_dense_ones(kind):
    cmdp = model(transitions=sparse(kind=kind))
    assert (cmdp.states, cmdp.actions) == (S, A)
    assert cmdp.transitions.format == "csr"
    np.testing.assert_array_equal(cmdp.transitions.toarray(), model().transitions)


def test_duplicate_sparse_entries_are_summed():
    # Row 0 holds 1/4 + 1/2 + 1/4 at column 1; row 1 holds 3/2 − 1/2 at column 0, which only the sum makes valid.
    rows, columns = [0, 1, 0, 0, 1], [1, 0, 1, 1, 0]
    entries = [0.25, 1.5, 0.5, 0.25, -0.5]
    as_coo = sp.coo_array((entries, (rows, columns)), shape=(2, 2))
    as_csr = sp.csr_array(([0.25, 0.5, 0.25, 1.5, -0.5], [1, 1, 1, 0, 0], [0, 3, 5]), shape=(2, 2))
    for given in (as_coo, as_csr):
        cmdp = ck.CMDP(given, reward=[[0.0], [0.0]], gamma=0.5)
        np.testing.assert_array_equal(cmdp.transitions.toarray(), [[0.0, 1.0], [1.0, 0.0]])
        assert cmdp.transitions.nnz == 2
        assert given.nnz == 5  # the user's matrix is left as it was


def test_unsorted_sparse_rows_are_read_by_their_indices():
    given = sp.csr_array((np.array([0.25, 0.75, 1.0]), np.array([1, 0, 0]), np.array([0, 2, 3])), shape=(2, 2))
    cmdp = ck.CMDP(given, reward=[[0.0], [0.0]], gamma=0.5)
    np.testing.assert_array_equal(cmdp.transitions.toarray(), [[0.75, 0.25], [1.0, 0.0]])


def test_lists_integers_and_truth_values_are_numbers():
    stay_or_swap = [[[1, 0], [0, 1]], [[0, 1], [1, 0]]]
    cmdp = ck.CMDP(
        stay_or_swap,
        cost=[[1, 2], [3, 4]],
        constraints=(ck.AtMost([[True, False], [False, True]], 1),),
        gamma=0,
        initial=[0, 1],
    )
    assert cmdp.gamma == 0.0
    assert isinstance(cmdp.gamma, float)
    np.testing.assert_array_equal(cmdp.costs, [[1.0, 2.0, 3.0, 4.0], [1.0, 0.0, 0.0, 1.0]])
    np.testing.assert_array_equal(cmdp.initial, [0.0, 1.0])
    for array in (cmdp.transitions, cmdp.objective, cmdp.costs, cmdp.initial, cmdp.limits):
        assert array.dtype == np.float64
    np.testing.assert_array_equal(
        ck.CMDP(sp.csr_array(np.reshape(stay_or_swap, (4, 2))), cost=[[1, 2], [3, 4]], gamma=0).transitions.toarray(),
        cmdp.transitions,
    )


def test_memory_order_and_precision_of_the_input_do_not_matter():
    cmdp = model(transitions=np.asfortranarray(P, dtype=np.float32), reward=np.asfortranarray(R)[:, ::1])
    np.testing.assert_array_equal(cmdp.transitions, model().transitions)
    np.testing.assert_array_equal(cmdp.costs, model().costs)


@pytest.mark.parametrize(
    ("initial", "expected"),
    [
        (None, [1 / 3, 1 / 3, 1 / 3]),
        (2, [0.0, 0.0, 1.0]),
        (np.int64(0), [1.0, 0.0, 0.0]),
        (np.array(1), [0.0, 1.0, 0.0]),
        ([0.25, 0.5, 0.25], [0.25, 0.5, 0.25]),
    ],
)
def test_initial_is_a_distribution_a_state_or_uniform(initial, expected):
    np.testing.assert_array_equal(model(initial=initial).initial, expected)


def test_rows_may_be_off_by_rounding_and_the_sums_are_kept():
    cmdp = model(transitions=changed(P, (0, 1, 1), 1.0 + 5e-9))
    assert cmdp.row_sums == (1.0, 1.0 + 5e-9)
    cmdp = model(transitions=sparse(changed(P, (0, 1, 1), 1.0 - 5e-9)))
    assert cmdp.row_sums == (1.0 - 5e-9, 1.0)


def test_any_iterable_of_constraints_and_default_names():
    constraints = [ck.AtMost(C, 1.0), ck.AtLeast(G, 2.0, name="utility"), ck.AtMost(C, 3.0)]
    cmdp = model(constraints=iter(constraints))
    assert cmdp.names == ["constraint 1", "utility", "constraint 3"]
    assert cmdp.num_constraints == 3
    assert (
        repr(cmdp) == "CMDP(states=3, actions=2, constraints=['constraint 1', 'utility', 'constraint 3'], gamma=0.75)"
    )


# -- the convention: minimise V_0 subject to V_i ≤ 0 ---------------------------------------------------------------


def test_costs_and_offsets_are_the_convention():
    # V_0 = −V_R;  AtMost: V_C − 5 ≤ 0;  AtLeast: 3 − V_G ≤ 0;  per step: (1 − γ) V − limit, here with 1 − γ = 1/4.
    cmdp = model(
        constraints=[
            ck.AtMost(C, 5.0),
            ck.AtLeast(G, 3.0),
            ck.AtMost(C, 0.5, per_step=True),
            ck.AtLeast(G, -0.25, per_step=np.True_),
        ]
    )
    expected = np.stack([-R, C, -G, C / 4.0, -G / 4.0]).reshape(5, S * A)
    np.testing.assert_array_equal(cmdp.costs, expected)
    np.testing.assert_array_equal(cmdp.signs, [1.0, -1.0, 1.0, -1.0])
    np.testing.assert_array_equal(cmdp.limits, [5.0, 3.0, 0.5, -0.25])
    np.testing.assert_array_equal(cmdp.offsets, [5.0, -3.0, 0.5, 0.25])
    np.testing.assert_array_equal(cmdp.objective, R)  # as the user stated it
    assert [c.symbol for c in cmdp.constraints] == ["<=", ">=", "<=", ">="]
    assert [c.per_step for c in cmdp.constraints] == [False, False, True, True]


def test_a_cost_is_the_objective_itself():
    cmdp = model(reward=None, cost=C)
    assert not cmdp.maximise
    assert cmdp.sense == 1.0
    np.testing.assert_array_equal(cmdp.costs, C.reshape(1, -1))
    assert model().maximise
    assert model().sense == -1.0


def test_without_constraints_the_arrays_are_empty():
    cmdp = model()
    assert cmdp.costs.shape == (1, S * A)
    assert cmdp.offsets.shape == cmdp.signs.shape == cmdp.limits.shape == (0,)
    assert cmdp.names == []


def test_back_to_the_users_sense_and_units():
    cmdp = model(constraints=[ck.AtMost(C, 5.0), ck.AtLeast(G, 3.0)])
    # V = (−1.5, 2): the first is 5 − 1.5 = 3.5, within its limit; the second 3 − 2 = 1, short of it by 2.
    v = np.array([-1.5, 2.0])
    np.testing.assert_array_equal(cmdp.user_constraint_values(v), [3.5, 1.0])
    np.testing.assert_array_equal(cmdp.violations(v), [0.0, 2.0])
    assert cmdp.user_objective(7.0) == -7.0
    assert not np.signbit(cmdp.user_objective(0.0))
    assert model(reward=None, cost=C).user_objective(7.0) == 7.0
    np.testing.assert_array_equal(cmdp.tolerance_scales, [5.0, 3.0])
    np.testing.assert_array_equal(model(constraints=[ck.AtMost(C, -0.5)]).tolerance_scales, [1.0])
    np.testing.assert_array_equal(cmdp.spans, [6.0, 9.0, 3.5])


# -- frozen ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gamma", "transitions", "costs", "states", "constraints", "maximise", "brand_new"])
def test_attributes_cannot_be_set(name):
    cmdp = rich_model()
    before = getattr(cmdp, name, None)
    with pytest.raises(AttributeError, match=f"frozen.*{name}"):
        setattr(cmdp, name, 0.5)
    assert getattr(cmdp, name, None) is before


def test_attributes_cannot_be_deleted():
    cmdp = rich_model()
    with pytest.raises(AttributeError, match="frozen"):
        del cmdp.gamma
    assert cmdp.gamma == 0.75


def test_constraints_are_frozen():
    constraint = ck.AtLeast(G, 3.0)
    with pytest.raises(AttributeError, match="limit"):
        constraint.limit = 4.0


def arrays_of(cmdp):
    arrays = {name: getattr(cmdp, name) for name in ("objective", "initial", "costs", "signs", "limits", "offsets")}
    arrays |= {f"values of {c.name}": c.values for c in cmdp.constraints}
    if sp.issparse(cmdp.transitions):
        return arrays | {name: getattr(cmdp.transitions, name) for name in ("data", "indices", "indptr")}
    return arrays | {"transitions": cmdp.transitions}


@pytest.mark.parametrize("transitions", [P, sparse()], ids=["dense", "sparse"])
def test_arrays_are_read_only(transitions):
    cmdp = rich_model(transitions=transitions)
    assert [name for name, array in arrays_of(cmdp).items() if array.flags.writeable] == []
    with pytest.raises(ValueError, match="read-only"):
        cmdp.costs[0, 0] = 1.0


@pytest.mark.parametrize("kind", [np.array, sp.csr_array, sp.csc_array, sp.coo_array])
def test_later_changes_of_the_users_arrays_do_not_reach_the_model(kind):
    transitions = P.copy() if kind is np.array else sparse(kind=kind)
    reward, values, initial = R.copy(), C.copy(), RHO.copy()
    cmdp = model(transitions=transitions, reward=reward, constraints=[ck.AtMost(values, 1.0)], initial=initial)
    before = {name: array.copy() for name, array in arrays_of(cmdp).items()}
    for array in (transitions if kind is np.array else transitions.data, reward, values, initial):
        array[...] = 77.0  # also shows that the user's arrays stay writeable
    if kind is sp.csr_array:
        transitions.indices[...] = 0
        transitions.indptr[...] = 0
    for name, array in arrays_of(cmdp).items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


# -- files -----------------------------------------------------------------------------------------------------------

MODELS = {
    "dense": rich_model,
    "sparse": lambda: rich_model(transitions=sparse()),
    "no constraints": model,
    "sparse, no constraints, cost": lambda: model(transitions=sparse(), reward=None, cost=C),
    "numbers that decimals cannot hold": lambda: model(
        reward=changed(R / 3.0, (0, 0), -0.0), cost=None, gamma=1.0 - 2.0**-40, initial=RHO / np.float64(1.0 + 1e-9)
    ),
    "one state, one action": lambda: ck.CMDP([[[1.0]]], cost=[[5e-324]], gamma=0.0, constraints=[ck.AtMost([[1]], 1)]),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("as_text", [True, False])
def test_a_saved_model_comes_back_exactly(make, as_text, tmp_path):
    path = tmp_path / "Modell ü.npz"
    cmdp = make()
    cmdp.save(str(path) if as_text else path)
    assert_same(ck.CMDP.load(str(path) if as_text else path), cmdp)
    assert os.listdir(tmp_path) == ["Modell ü.npz"]


def test_the_file_has_the_name_that_was_asked_for(tmp_path):
    path = tmp_path / "model"
    model().save(path)
    assert os.listdir(tmp_path) == ["model"]
    assert_same(ck.CMDP.load(path), model())


def test_a_saved_file_replaces_the_old_one_and_has_ordinary_permissions(tmp_path):
    path = tmp_path / "m.npz"
    model().save(path)
    rich_model().save(path)
    assert_same(ck.CMDP.load(path), rich_model())
    (tmp_path / "plain").write_bytes(b"")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_names_that_differ_still_differ_after_loading(tmp_path):
    # NumPy drops zeros at the end of a string, so that such a name would come back as another one.
    with pytest.raises(TypeError, match="name of constraint 1 must be a non-empty string"):
        model(constraints=[ck.AtMost(C, 1.0, name="a\0"), ck.AtMost(C, 1.0, name="a")])
    names = ["a", "a ", " a", "A", "ä", "a\u0308", "a\t", "a\n"]
    model(constraints=[ck.AtMost(C, 1.0, name=name) for name in names]).save(tmp_path / "m.npz")
    assert ck.CMDP.load(tmp_path / "m.npz").names == names


def failing_savez(error):
    def savez(file, *args, **kwargs):
        file.write(b"PK half of a file")
        raise error

    return savez


def failing(error):
    def fail(*args, **kwargs):
        raise error

    return fail


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt(), MemoryError()], ids=repr)
@pytest.mark.parametrize("where", ["savez", "fsync", "replace"])
@pytest.mark.parametrize("existing", [True, False])
def test_a_failing_write_leaves_the_old_file_and_nothing_else(existing, where, error, tmp_path, monkeypatch):
    path = tmp_path / "m.npz"
    if existing:
        model().save(path)
    with monkeypatch.context() as patch:
        if where == "savez":
            patch.setattr(np, "savez", failing_savez(error))
            patch.setattr(np, "savez_compressed", failing_savez(error))
        else:
            patch.setattr(os, where, failing(error))
        with pytest.raises(type(error)):
            rich_model().save(path)
    assert os.listdir(tmp_path) == (["m.npz"] if existing else [])
    if existing:
        assert_same(ck.CMDP.load(path), model())


def test_a_missing_folder_or_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "nowhere"))):
        model().save(tmp_path / "nowhere" / "m.npz")
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "m.npz"))):
        ck.CMDP.load(tmp_path / "m.npz")
    assert os.listdir(tmp_path) == []


def entries_of(cmdp) -> dict[str, np.ndarray]:
    """What `save` writes, as arrays."""
    with tempfile.TemporaryDirectory() as folder:
        cmdp.save(Path(folder) / "m.npz")
        with np.load(Path(folder) / "m.npz", allow_pickle=False) as stored:
            return dict(stored)


def packed(**entries) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **entries)
    return buffer.getvalue()


def refuse(path: Path, content: bytes) -> str:
    """The message with which the file is refused; it names the file."""
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(str(path))) as caught:
        ck.CMDP.load(path)
    return str(caught.value)


def npy(array=P) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


FOREIGN = {
    "empty file": lambda: b"",
    "text": lambda: b"transitions: 0.5 0.5\n" * 40,
    "text in another encoding": lambda: "δοκιμή".encode("utf-16"),
    "npy": npy,
    "zip without arrays": lambda: zipped({"kind": b"cmdpkit model"}),
    "empty zip": lambda: zipped({}),
    "foreign npz": lambda: packed(x=P),
    "npz with another kind": lambda: packed(kind=np.array("another model"), x=P),
    "raw pickle": lambda: pickle.dumps({"gamma": 0.9}),
}


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
def test_a_file_that_is_no_model_is_refused(make, tmp_path):
    refuse(tmp_path / "m.npz", make())


def test_a_folder_is_refused(tmp_path):
    with pytest.raises((ValueError, OSError), match=re.escape(str(tmp_path))):
        ck.CMDP.load(tmp_path)


def test_a_policy_is_not_a_model(tmp_path):
    ck.TabularPolicy.uniform(S, A).save(tmp_path / "policy.npz")
    with pytest.raises(ValueError, match=r"policy\.npz holds 'cmdpkit policy', but 'cmdpkit model' is needed here"):
        ck.CMDP.load(tmp_path / "policy.npz")


@pytest.mark.parametrize("transitions", [P, sparse()], ids=["dense", "sparse"])
def test_a_truncated_file_is_refused(transitions, tmp_path):
    path = tmp_path / "m.npz"
    rich_model(transitions=transitions).save(path)
    content = path.read_bytes()
    for length in {0, 1, 3, 4, 10, 30, 100, len(content) // 2, len(content) - 100, len(content) - 22, len(content) - 1}:
        refuse(path, content[:length])


def data_of(content: bytes, name: str) -> tuple[int, int]:
    """Where the compressed data of an entry begins, and how long it is."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        member = archive.getinfo(f"{name}.npy")
    # 30 bytes of local header, then the name and the extra field, whose lengths stand at 26 and 28
    lengths = [int.from_bytes(content[member.header_offset + k :][:2], "little") for k in (26, 28)]
    return member.header_offset + 30 + sum(lengths), member.compress_size


def flipped(content: bytes, position: int, mask: int = 0xFF) -> bytes:
    return content[:position] + bytes([content[position] ^ mask]) + content[position + 1 :]


@pytest.mark.parametrize("transitions", [P, sparse()], ids=["dense", "sparse"])
def test_flipped_bytes_of_the_data_are_noticed(transitions, tmp_path):
    path = tmp_path / "m.npz"
    cmdp = rich_model(transitions=transitions)
    cmdp.save(path)
    content = path.read_bytes()
    for name in entries_of(cmdp):
        start, length = data_of(content, name)
        for offset in (0, length // 3, length // 2, 2 * length // 3):
            refuse(path, flipped(content, start + offset))


def test_flipped_bits_of_a_larger_file_are_noticed(tmp_path):
    # Long entries are read in pieces; a changed reward would pass every check of the constructor.
    path, rng = tmp_path / "m.npz", np.random.default_rng(0)
    stay = sp.csr_array(np.repeat(np.eye(300), 9, axis=0))
    ck.CMDP(stay, reward=rng.random((300, 9)), gamma=0.9).save(path)
    content = path.read_bytes()
    start, length = data_of(content, "objective")
    assert length > 2**14
    for offset in rng.integers(200, length - 20, size=20):
        refuse(path, flipped(content, start + int(offset), 1 << int(rng.integers(8))))


def load_or_message(path: Path) -> tuple[ck.CMDP | None, str]:
    try:
        return ck.CMDP.load(path), ""
    except ValueError as error:
        return None, str(error)


def test_a_flipped_byte_anywhere_is_noticed_or_harmless(tmp_path):
    # Some bytes of a zip (times, versions) mean nothing; all others must give the one refusal, never a wrong model.
    path = tmp_path / "m.npz"
    cmdp = model(constraints=[ck.AtMost(C, 5.0, name="ü")])
    cmdp.save(path)
    content = path.read_bytes()
    directory = content.index(b"PK\x01\x02")
    refused = 0
    # all of the directory's first entry, and a sample of the rest
    for position in [*range(directory, directory + 60), *range(0, len(content), 5)]:
        path.write_bytes(flipped(content, position))
        loaded, message = load_or_message(path)
        if loaded is None:
            assert str(path) in message
            refused += 1
        else:
            assert_same(loaded, cmdp)
    assert refused > len(content) // 10


def test_refused_files_are_closed(tmp_path):
    path = tmp_path / "m.npz"
    model().save(path)
    content = path.read_bytes()
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for broken in (content[: len(content) // 2], b"", b"text", npy(), packed(x=P)):
            refuse(path, broken)
        gc.collect()
    assert [str(w.message) for w in caught if "unclosed" in str(w.message)] == []


class Bomb:
    """An object whose unpickling makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("place", ["kind", "objective", "an entry that nobody reads", "single array", "raw pickle"])
def test_no_pickle_is_ever_executed(place, tmp_path):
    bomb = np.array([Bomb(tmp_path / "boom")], dtype=object)
    in_archive = place not in ("single array", "raw pickle")
    if in_archive:
        content = packed(**(entries_of(rich_model()) | {place: bomb}))
    else:
        content = npy(bomb) if place == "single array" else pickle.dumps(bomb[0])
    path = tmp_path / "m.npz"
    refuse(path, content)
    assert os.listdir(tmp_path) == ["m.npz"]
    # The bomb is a real one: the file does hold the call that a careless reader would make.
    raw = path.read_bytes()
    if in_archive:
        with zipfile.ZipFile(path) as archive:
            raw = archive.read(f"{place}.npy")
    assert b"mkdir" in raw


@pytest.mark.parametrize("transitions", [P, sparse()], ids=["dense", "sparse"])
def test_a_missing_entry_is_named(transitions, tmp_path):
    entries = entries_of(rich_model(transitions=transitions))
    assert len(entries) > 10
    for missing in entries:
        message = refuse(tmp_path / "m.npz", packed(**{k: v for k, v in entries.items() if k != missing}))
        if missing == "kind":
            assert "was not written by cmdpkit" in message
        elif missing == "transitions":  # then it could only be a sparse model
            assert "missing" in message
        else:
            assert f"the entry '{missing}' is missing" in message


DAMAGED_ENTRIES = {
    "newer version": ({"version": np.array(5)}, "version is 5, this cmdpkit reads versions 1 to 4"),
    "version is text": ({"version": np.array("one")}, "m.npz"),
    "gamma": ({"gamma": np.array(1.5)}, "gamma must be in [0, 1), got 1.5"),
    "gamma is nan": ({"gamma": np.array(np.nan)}, "gamma must be finite"),
    "objective is a vector": ({"objective": R.ravel()}, "m.npz"),
    "objective per state": ({"objective": R[:, 0]}, "m.npz"),
    "objective of another model": ({"objective": np.zeros((4, 2))}, "m.npz"),
    "objective is nan": ({"objective": changed(R, (1, 1), np.nan)}, "reward of state 1, action 1 is nan"),
    "objective is text": ({"objective": R.astype(str)}, "reward must hold real numbers"),
    "rows": ({"transitions": 0.5 * P}, "state 0, action 0 sum to 0.5, not 1"),
    "initial": ({"initial": np.array([1.0, 0.0])}, "initial has shape (2,)"),
    "one name too few": ({"names": np.array(["a", "b"])}, "m.npz"),
    "names twice": ({"names": np.array(["a", "b", "a"])}, "used more than once: 'a'"),
    "limit is nan": ({"limits": np.array([5.0, np.nan, 1.0])}, "must be finite, not nan"),
    "limits are a table": ({"limits": np.ones((3, 2))}, "m.npz"),
    "values of another shape": ({"values": np.zeros((3, 2, 2))}, "has shape (2, 2)"),
    "maximise is a list": ({"maximise": np.array([True, False])}, "m.npz"),
}


@pytest.mark.parametrize(("entries", "fragment"), DAMAGED_ENTRIES.values(), ids=DAMAGED_ENTRIES)
def test_a_file_with_wrong_entries_is_refused_by_the_checks_of_the_constructor(entries, fragment, tmp_path):
    assert fragment in refuse(tmp_path / "m.npz", packed(**(entries_of(rich_model()) | entries)))


DAMAGED_SPARSE = {
    "column out of range": {"indices": np.array([0, 1, 2, 1, 0, 1, 2, 0, 2, 0, 3])},
    "negative column": {"indices": np.array([0, 1, -2, 1, 0, 1, 2, 0, 2, 0, 2])},
    "pointers beyond the data": {"indptr": np.array([0, 3, 4, 7, 8, 9, 999])},
    "pointers that go back": {"indptr": np.array([0, 9, 4, 7, 8, 9, 11])},
    "too few pointers": {"indptr": np.array([0, 3, 11])},
    "data too short": {"data": np.ones(3)},
    "data is text": {"data": np.array(["a"] * 11)},
}


@pytest.mark.parametrize("entries", DAMAGED_SPARSE.values(), ids=DAMAGED_SPARSE)
def test_a_file_with_wrong_sparse_structure_is_refused(entries, tmp_path):
    good = entries_of(rich_model(transitions=sparse()))
    assert good["data"].size == 11
    refuse(tmp_path / "m.npz", packed(**(good | entries)))


@pytest.mark.parametrize("name", ["objective", "gamma", "kind", "names"])
def test_an_entry_that_is_no_array_is_refused(name, tmp_path):
    buffer = io.BytesIO(packed(**{k: v for k, v in entries_of(rich_model()).items() if k != name}))
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr(name, b"not an array")
    refuse(tmp_path / "m.npz", buffer.getvalue())


# -- every refusal ---------------------------------------------------------------------------------------------------


def at_most(values=C, limit=5.0, name="power", **more):
    return {"constraints": [ck.AtMost(values, limit, name=name, **more)]}


DIVIDE = "divide each row by its sum"
FINITE = "probabilities must be finite and nonnegative"
NEED = "they need shape (S, A, S)"
FITS = "the transitions have 3 states and 2 actions, so it must have shape (3, 2)"
EXACTLY_ONE = "exactly one of reward (maximised) and cost (minimised) is needed"

# Row 2·1 + 1 = 3 is empty: places after it must still be named right.
HOLE = sp.csr_array(changed(P, (1, 1), 0.0).reshape(-1, S))
TINY = 1e-7

REFUSALS = {
    # -- rows
    "row sum": (
        {"transitions": changed(P, (2, 1, 0), 0.65)},
        "state 2, action 1 sum to 0.9, not 1 (1 of 6 rows",
        DIVIDE,
    ),
    "row sums, the worst is named": (
        {"transitions": changed(changed(P, (0, 1, 1), 0.99), (1, 1, 0), 1.5)},
        "state 1, action 1 sum to 1.5, not 1 (2 of 6 rows are off)",
        DIVIDE,
    ),
    "row sum, sparse": (
        {"transitions": sparse(changed(P, (2, 1, 0), 0.65))},
        "state 2, action 1 sum to 0.9, not 1 (1 of 6 rows are off)",
        DIVIDE,
    ),
    "row sum, sparse empty row": (
        {"transitions": HOLE},
        "all probabilities of state 1, action 1 are zero (1 of",
        "available=",
    ),
    "row sum, more than rounding": (
        {"transitions": changed(P, (0, 1, 1), 1.0 + 2e-8)},
        "state 0, action 1 sum to 1.00000002, not 1",
        DIVIDE,
    ),
    "row sum above 1/gamma": (
        {"transitions": changed(P, (0, 1, 1), 1.0 + 5e-9), "gamma": 1.0 - 1e-9},
        "is not below 1",
        "normalise the rows",
    ),
    # -- probabilities
    "negative": (
        {"transitions": changed(P, (1, 0, 2), -0.25)},
        "moving from state 1, action 0 to state 2 is -0.25 (1 such entry)",
        FINITE,
    ),
    "negative in a row that sums to one": (
        {"transitions": changed(P, (0, 1), [-TINY, 1.0 + TINY, 0.0])},
        "from state 0, action 1 to state 0 is -1e-07",
        FINITE,
    ),
    "nan": ({"transitions": changed(P, (2, 1, 1), np.nan)}, "state 2, action 1 to state 1 is nan", FINITE),
    "inf": ({"transitions": changed(P, (0, 0, 2), np.inf)}, "state 0, action 0 to state 2 is inf", FINITE),
    "all nan": ({"transitions": np.full_like(P, np.nan)}, "state 0, action 0 to state 0 is nan (18 such", FINITE),
    **{
        f"{value} in {kind.__name__}": (
            {"transitions": kind(changed(HOLE.toarray(), (5, 0), value))},
            f"from state 2, action 1 to state 0 is {value} (1 such entry)",
            FINITE,
        )
        for kind in (sp.csr_array, sp.csc_array, sp.coo_array)
        for value in (-0.25, np.nan, np.inf)
    },
    "negative in the first sparse row": (
        {"transitions": sparse(changed(P, (0, 0, 1), -1.0))},
        "from state 0, action 0 to state 1 is -1.0",
        FINITE,
    ),
    # -- shapes of the transitions
    "2-D dense": ({"transitions": P.reshape(6, 3)}, "transitions have shape (6, 3)", NEED),
    "next states do not match": ({"transitions": np.ones((3, 2, 4)) / 4}, "transitions have shape (3, 2, 4)", NEED),
    "no states": ({"transitions": np.ones((0, 2, 0))}, "transitions have shape (0, 2, 0)", NEED),
    "no actions": ({"transitions": np.ones((3, 0, 3))}, "transitions have shape (3, 0, 3)", NEED),
    "4-D": ({"transitions": P[None]}, "one for each stage; that needs horizon=1"),
    "a number": ({"transitions": 1.0}, "transitions have shape ()", NEED),
    "an empty list": ({"transitions": []}, "transitions have shape (0,)", NEED),
    "ragged": ({"transitions": [[[1.0], [0.5, 0.5]]]}, "transitions is not a rectangular array"),
    "sparse rows": (
        {"transitions": sp.csr_array(np.ones((5, 3)) / 3)},
        "sparse transitions have shape (5, 3); they need S·A rows and S columns (row s·A + a)",
        "5 is not a positive multiple of 3",
    ),
    "sparse without rows": ({"transitions": sp.csr_array((0, 3))}, "0 is not a positive multiple of 3"),
    "sparse without columns": ({"transitions": sp.csr_array((3, 0))}, "sparse transitions have shape (3, 0)"),
    "sparse vector": ({"transitions": sp.coo_array(np.ones(3))}, "transitions have shape (3,)"),
    # -- kinds of numbers
    "complex transitions": ({"transitions": P + 0j}, TypeError, "transitions must hold real numbers", "complex128"),
    "string transitions": (
        {"transitions": P.astype(str)},
        TypeError,
        "transitions must hold real numbers, not dtype <U",
    ),
    "object transitions": ({"transitions": P.astype(object)}, TypeError, "must hold real numbers, not dtype object"),
    "no transitions": ({"transitions": None}, TypeError, "transitions must hold real numbers"),
    "complex sparse": ({"transitions": sparse(P + 0j)}, TypeError, "transitions must hold real numbers", "complex128"),
    "complex reward": ({"reward": R + 0j}, TypeError, "reward must hold real numbers, not dtype complex128"),
    "string reward": ({"reward": R.astype(str)}, TypeError, "reward must hold real numbers, not dtype <U"),
    "object reward": ({"reward": R.astype(object)}, TypeError, "reward must hold real numbers, not dtype object"),
    "string cost": ({"reward": None, "cost": "high"}, TypeError, "cost must hold real numbers, not dtype <U4"),
    "complex constraint": (at_most(C + 0j), TypeError, "constraint 'power' must hold real numbers", "complex128"),
    "object constraint": (at_most(None), TypeError, "constraint 'power' must hold real numbers, not dtype object"),
    "complex initial": ({"initial": RHO + 0j}, TypeError, "initial must hold real numbers, not dtype complex128"),
    # -- the objective
    "reward and cost": ({"cost": C}, EXACTLY_ONE, "both were given"),
    "neither reward nor cost": ({"reward": None}, EXACTLY_ONE, "neither was given"),
    "reward is a vector": ({"reward": np.ones(4)}, "reward has shape (4,)", FITS),
    "reward transposed": ({"reward": R.T}, "reward has shape (2, 3)", FITS),
    "reward of a transition": ({"reward": P[:, :1]}, "reward has shape (3, 1, 3)", FITS),
    "reward is a number": ({"reward": 1.0}, "reward has shape ()", FITS),
    "reward is ragged": ({"reward": [[1.0], [1.0, 2.0], [0.0, 0.0]]}, "reward is not a rectangular array"),
    "reward is sparse": ({"reward": sp.csr_array(R)}, TypeError, "reward must be a dense array", "call .toarray()"),
    "cost of wrong shape": ({"reward": None, "cost": np.ones((3, 3))}, "cost has shape (3, 3)", FITS),
    "reward is nan": (
        {"reward": changed(R, (1, 0), np.nan)},
        "reward of state 1, action 0 is nan (1 such entry)",
    ),
    "reward is inf": ({"reward": changed(R, (2, 1), np.inf)}, "reward of state 2, action 1 is inf (1 such entry)"),
    "cost is -inf": (
        {"reward": None, "cost": changed(C, (slice(1, 3), 1), -np.inf)},
        "cost of state 1, action 1 is -inf (2 such entries)",
    ),
    # -- gamma
    "gamma -0.1": ({"gamma": -0.1}, "gamma must be in [0, 1), got -0.1", "needs gamma below 1"),
    "gamma 1": ({"gamma": 1}, "gamma = 1 needs an end that every policy reaches", "use gamma < 1"),
    "gamma 1.5": ({"gamma": 1.5}, "gamma must be in [0, 1), got 1.5", "needs gamma below 1"),
    "gamma nan": ({"gamma": np.nan}, "gamma must be finite, not nan"),
    "gamma inf": ({"gamma": np.inf}, "gamma must be finite, not inf"),
    "gamma string": ({"gamma": "0.9"}, TypeError, "gamma must be a number, not str"),
    "gamma None": ({"gamma": None}, TypeError, "gamma is needed: a discount factor below 1"),
    "gamma True": ({"gamma": True}, TypeError, "gamma must be a number, not bool"),
    "gamma False": ({"gamma": np.False_}, TypeError, "gamma must be a number, not bool"),
    "gamma array": ({"gamma": np.array([0.9])}, TypeError, "gamma must be a number, not ndarray"),
    "gamma complex": ({"gamma": 0.5 + 0j}, TypeError, "gamma must be a number, not complex"),
    # -- initial
    "initial length": (
        {"initial": [0.5, 0.5]},
        "initial has shape (2,); a distribution over the states has shape (3,)",
    ),
    "initial table": ({"initial": RHO[None]}, "initial has shape (1, 3)", "shape (3,)"),
    "initial negative": ({"initial": [1.25, -0.25, 0.0]}, "initial[1] is -0.25; probabilities must be finite"),
    "initial nan": ({"initial": [0.5, 0.5, np.nan]}, "initial[2] is nan; probabilities must be finite"),
    "initial inf": ({"initial": [np.inf, 0.5, 0.5]}, "initial[0] is inf; probabilities must be finite"),
    "initial sum": ({"initial": [0.5, 0.25, 0.15]}, "initial sums to 0.9, not 1; divide it by its sum"),
    "initial more than rounding": ({"initial": [0.5, 0.5, 2e-8]}, "initial sums to 1.00000002, not 1"),
    "initial -1": ({"initial": -1}, "initial state -1 is not one of the states 0 to 2"),
    "initial S": ({"initial": 3}, "initial state 3 is not one of the states 0 to 2"),
    "initial array S": ({"initial": np.array(3)}, "initial state 3 is not one of the states 0 to 2"),
    "initial 0.5": ({"initial": 0.5}, "initial has shape (); a distribution over the states has shape (3,)"),
    "initial array 0.5": ({"initial": np.array(0.5)}, TypeError, "initial must be a state index or a distribution"),
    "initial True": ({"initial": True}, TypeError, "initial must be a state index or a distribution, not a bool"),
    "initial np.True_": ({"initial": np.True_}, TypeError, "initial must be a state index or a distribution"),
    "initial array True": ({"initial": np.array(True)}, TypeError, "initial must be a state index or a distribution"),
    "initial string": ({"initial": "first"}, "initial is 'first', but the model has no state_labels"),
    # -- constraints
    "bare constraint": (
        {"constraints": ck.AtLeast(C, 1.0)},
        TypeError,
        "constraints must be a list: constraints=[AtMost(...)]",
    ),
    "constraints None": ({"constraints": None}, TypeError, "constraints"),
    "constraints number": ({"constraints": 3}, TypeError, "constraints"),
    "not a constraint": (
        {"constraints": [ck.AtMost(C, 1.0), (C, 5.0)]},
        TypeError,
        "constraint 2 is of type tuple; use cmdpkit.AtMost, AtLeast, Equal or Between",
    ),
    "an array for constraints": ({"constraints": C}, TypeError, "constraint 1 is of type ndarray; use cmdpkit.AtMost"),
    "constraint shape": (at_most(np.ones((2, 3))), "constraint 'power' has shape (2, 3)", FITS),
    "constraint without a name": ({"constraints": [ck.AtMost(np.ones(5), 1.0)]}, "constraint 'constraint 1' has shape"),
    "constraint nan": (
        at_most(changed(C, (2, 0), np.nan)),
        "constraint 'power' of state 2, action 0 is nan (1 such entry)",
    ),
    "constraint inf": (
        at_most(changed(C, (0, 1), -np.inf)),
        "constraint 'power' of state 0, action 1 is -inf (1 such entry)",
    ),
    "constraint sparse": (at_most(sp.csr_array(C)), TypeError, "constraint 'power' must be a dense", "call .toarray()"),
    "limit nan": (at_most(limit=np.nan), "the limit of constraint 'power' must be finite, not nan"),
    "limit inf": (at_most(limit=np.inf), "the limit of constraint 'power' must be finite, not inf"),
    "limit too large for a float": (at_most(limit=10**400), "the limit of constraint 'power'"),
    "limit string": (at_most(limit="5"), TypeError, "the limit of constraint 'power' must be a number, not str"),
    "limit None": (at_most(limit=None), TypeError, "the limit of constraint 'power' must be a number, not NoneType"),
    "limit True": (at_most(limit=True), TypeError, "the limit of constraint 'power' must be a number, not bool"),
    "limit array": (at_most(limit=np.ones(2)), TypeError, "the limit of constraint 'power' must be a number"),
    "per_step 1": (at_most(per_step=1), TypeError, "per_step of constraint 'power' must be True or False, not 1"),
    "per_step text": (
        at_most(per_step="no"),
        TypeError,
        "per_step of constraint 'power' must be True or False, not 'no'",
    ),
    "per_step None": (at_most(per_step=None), TypeError, "per_step of constraint 'power' must be True or False"),
    "name number": (at_most(name=3), TypeError, "the name of constraint 1 must be a non-empty string, not 3"),
    "name bytes": (at_most(name=b"x"), TypeError, "the name of constraint 1 must be a non-empty string, not b'x'"),
    "name empty": (at_most(name=""), TypeError, "the name of constraint 1 must be a non-empty string, not ''"),
    "names twice": (
        {"constraints": [ck.AtMost(C, 1.0, name=n) for n in ("b", "a", "b", "c", "a")]},
        "constraint names must differ; used more than once: 'a', 'b'",
    ),
    "a name that is another's default": (
        {"constraints": [ck.AtMost(C, 1.0, name="constraint 2"), ck.AtMost(C, 1.0)]},
        "constraint names must differ; used more than once: 'constraint 2'",
    ),
}


@pytest.mark.parametrize("case", REFUSALS.values(), ids=REFUSALS)
def test_refusals_name_the_place_and_the_remedy(case):
    changes, *fragments = case
    kind = ValueError if isinstance(fragments[0], str) else fragments.pop(0)
    with pytest.raises(kind) as caught:
        model(**changes)
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_the_arguments_after_the_transitions_have_names():
    with pytest.raises(TypeError, match="positional"):
        ck.CMDP(P, R, gamma=0.9)
    with pytest.raises(TypeError, match="gamma"):
        ck.CMDP(P, reward=R)


def test_fine_scales_by_hand():
    """min(1, span) of each cost, but no less than its |limit|: small costs are solved as exactly as large ones."""
    P = np.ones((1, 2, 1))
    limits = [ck.AtMost([[0.0, 1e-4]], 1e-5), ck.AtMost([[0.0, 50.0]], 1e-5), ck.AtMost([[0.0, 1e-4]], 7.0)]
    cmdp = ck.CMDP(P, cost=[[0.0, 1e-3]], constraints=limits, gamma=0.5)
    np.testing.assert_allclose(cmdp.fine_scales, [1e-3, 1e-4, 1.0, 7.0])
    assert cmdp.proof_scale(1e-6) == pytest.approx(1e-3)
    assert cmdp.proof_scale(-5.0) == 5.0
    np.testing.assert_allclose(cmdp.tolerance_scales, [1.0, 1.0, 7.0])


def test_numbers_whose_squares_overflow_are_refused():
    P = np.ones((1, 1, 1))
    for cost, limit in ((1.0, 2e150), (1.0, -2e150), (2e150, 1.0), (0.6e150, 1.0)):
        with pytest.raises(ValueError, match="use a larger unit"):
            ck.CMDP(P, cost=[[0.0]], constraints=[ck.AtMost([[cost]], limit)], gamma=0.5)
    ck.CMDP(P, cost=[[0.0]], constraints=[ck.AtMost([[0.4e150]], 0.9e150)], gamma=0.5)
