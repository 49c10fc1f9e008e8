"""Files and fingerprints: whole or not at all, of the kind asked for, and the same only for the same numbers."""

import csv
import re
import zipfile

import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.checks import check_count, check_multipliers, digest
from cmdpkit.files import load_arrays, load_tensors, save_arrays, save_tensors, write_csv, write_whole


def test_columns_stand_under_their_names(tmp_path):
    write_csv(tmp_path / "t.csv", {"b": [1, 2], "a": [0.5, float("nan")], "c": ["x", "y, z"]})
    with open(tmp_path / "t.csv", newline="") as file:
        assert list(csv.DictReader(file)) == [{"b": "1", "a": "0.5", "c": "x"}, {"b": "2", "a": "nan", "c": "y, z"}]
    with pytest.raises(ValueError, match="argument"):
        write_csv(tmp_path / "t.csv", {"a": [1], "b": [1, 2]})


def test_a_failing_write_leaves_nothing_behind(tmp_path):
    (tmp_path / "f").write_text("old")

    def write(file):
        file.write(b"half")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk is full"):
        write_whole(tmp_path / "f", write)
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_text() == "old"


def test_a_folder_in_the_way_is_named(tmp_path):
    (tmp_path / "f").mkdir()
    with pytest.raises(IsADirectoryError, match="it is a folder; give the name of a file"):
        ck.problems.paper().save(tmp_path / "f")
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_new_file_has_ordinary_permissions(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    write_whole(tmp_path / "f", lambda file: file.write(b"x"))
    assert (tmp_path / "f").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize(("save", "load"), [(save_arrays, load_arrays), (save_tensors, load_tensors)])
def test_only_the_kind_that_is_asked_for(save, load, tmp_path):
    save(tmp_path / "f", "a tree", {"leaves": np.arange(3.0)})
    np.testing.assert_array_equal(load(tmp_path / "f", "a tree")["leaves"], [0.0, 1.0, 2.0])
    with pytest.raises(ValueError, match="'a bush'"):
        load(tmp_path / "f", "a bush")


def test_tensors_keep_plain_values_beside_arrays(tmp_path):
    state = {"weights": np.arange(6, dtype=np.float32).reshape(2, 3), "steps": 7, "verdicts": {"accepted": 2}}
    save_tensors(tmp_path / "f", "state", state)
    loaded = load_tensors(tmp_path / "f", "state")
    assert loaded["weights"].dtype == np.float32
    np.testing.assert_array_equal(loaded["weights"], state["weights"])
    assert (loaded["steps"], loaded["verdicts"]) == (7, {"accepted": 2})


def test_tensors_that_have_changed_are_noticed(tmp_path):
    """safetensors has no checksum: every byte of the numbers, of their names and of the header counts."""
    path = tmp_path / "f"
    save_tensors(path, "state", {"weights": np.arange(3.0), "bias": np.ones(2, np.float32), "steps": 7})
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(ValueError, match=re.escape(str(path))):
            load_tensors(path, "state")


def test_an_archive_of_other_things_than_arrays_is_refused(tmp_path):
    import zipfile

    save_arrays(tmp_path / "f", "a tree", {"leaves": np.arange(3.0)})
    with zipfile.ZipFile(tmp_path / "f", "a") as archive:
        archive.writestr("note", b"not an array")
    with pytest.raises(ValueError, match="'note' is not an array"):
        load_arrays(tmp_path / "f", "a tree")


def test_a_fingerprint_sees_every_number_the_shape_and_the_type():
    table = np.arange(6.0).reshape(3, 2)
    changed = table.copy()
    changed[-1, -1] += 1e-12
    others = [table, changed, table.reshape(2, 3), table.ravel(), table.astype(np.float32), table.T]
    assert len({digest(other) for other in others}) == len(others)
    assert digest(table) == digest(np.asfortranarray(table))
    assert digest(table, table) != digest(table)


def test_counts_and_multipliers_at_their_limits():
    assert check_count(3, "n", least=3) == 3
    with pytest.raises(ValueError, match="n must be at least 3, got 2"):
        check_count(2, "n", least=3)
    np.testing.assert_array_equal(check_multipliers([0.0, 2.0], 2, "multipliers"), [0.0, 2.0])
    for bad in ([-1e-300, 0.0], [np.inf, 0.0], [np.nan, 0.0]):
        with pytest.raises(ValueError, match="finite and nonnegative"):
            check_multipliers(bad, 2, "multipliers")


def test_a_header_that_numpy_cannot_parse_is_refused(tmp_path):
    """A flipped byte once opened a bracket in an array's header, and NumPy's tokenizer failed with its own error."""
    path = tmp_path / "broken.npz"
    header = b"\x93NUMPY\x01\x00\x40\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (2, ".ljust(63) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("kind.npy", header + bytes(16))
    with pytest.raises(ValueError, match="not a readable cmdpkit file"):
        load_arrays(path, "model")


def test_archives_with_a_comment_are_read(tmp_path):
    ck.problems.paper().save(tmp_path / "model.npz")
    with zipfile.ZipFile(tmp_path / "model.npz", "a") as archive:
        archive.comment = b"made on a Tuesday"
    assert ck.CMDP.load(tmp_path / "model.npz").states == 20
