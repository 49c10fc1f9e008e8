"""The demo: a table that fits a terminal, and a plot that shows something."""

import os
import re
import struct
import subprocess
import sys
import zlib

import numpy as np

METHODS = ("auto", "lp", "pmd-pd", "npg-pd", "crpo")
RUN = "import sys, pathlib; from cmdpkit.experiments.demo import main; main(pathlib.Path(sys.argv[1]))"
STRAY = ("LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "MPLBACKEND", "DISPLAY")


def test_demo(tmp_path):
    """One run, because it takes seconds, into a folder that is not there yet."""
    picture = tmp_path / "new" / "demo.png"
    environment = {k: v for k, v in os.environ.items() if k not in STRAY} | {"COLUMNS": "80", "PYTHONUTF8": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(picture)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    check_rows(lines)
    check_answer(lines)
    check_fit(lines, picture)
    check_png(picture.read_bytes())
    check_curves(picture)


def check_rows(lines):
    """A row for each method, and the truth in it."""
    rows = {line.split()[0]: line.split() for line in lines if re.match(r"[a-z-]+ +\d\.\d{6} ", line)}
    assert tuple(rows) == METHODS
    for method in ("auto", "lp"):
        assert rows[method][1] == "4.462444"
        assert "0.24267" in rows[method]
    for row in rows.values():
        assert 4.4 < float(row[1]) < 4.4624441
        assert row[2:5] == ["utility", ">=", "3"]


def check_answer(lines):
    """First the problem, then its certified answer, then the methods."""
    text = "\n".join(lines)
    assert text.index("The paper's instance") < text.index("OPTIMAL") < text.index("Every method")
    assert re.search(r"^objective +4\.46244364 ", text, re.MULTILINE)


def check_fit(lines, picture):
    """Nothing is wider than 80 columns, cut or coloured; only the path of the plot is as long as it is."""
    assert len(lines) > 20
    end = next(i for i, line in enumerate(lines) if "plot" in line)
    assert str(picture) in "".join(lines[end:])
    assert not [line for line in lines[:end] if len(line) > 80]
    assert "…" not in "\n".join(lines)
    assert "\x1b" not in "\n".join(lines)


def check_png(data):
    """Every chunk has its checksum, and nothing is missing."""
    assert len(data) > 20_000
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    kinds, position = [], 8
    while position < len(data):
        (length,), kind = struct.unpack(">I", data[position : position + 4]), data[position + 4 : position + 8]
        body = data[position + 4 : position + 8 + length]
        assert struct.unpack(">I", data[position + 8 + length : position + 12 + length]) == (zlib.crc32(body),)
        kinds.append(kind)
        position += 12 + length
    assert (kinds[0], kinds[-1]) == (b"IHDR", b"IEND")
    width, height = struct.unpack(">II", data[16:24])
    assert width >= 1000
    assert height >= 400


def check_curves(picture):
    """Each first-order method has its colour on both axes."""
    from matplotlib.colors import to_rgb
    from matplotlib.image import imread

    from cmdpkit.drawing import METHODS as STYLES
    from cmdpkit.experiments.common import ALGORITHMS

    pixels = imread(picture)[..., :3]
    assert set(ALGORITHMS) == {"pmd-pd", "npg-pd", "crpo"}
    half = pixels.shape[1] // 2
    for side in (pixels[:, :half], pixels[:, half:]):
        for colour in (STYLES[method].colour for method in ALGORITHMS):
            near = np.abs(side - np.array(to_rgb(colour))).max(axis=-1) < 0.02
            assert near.sum() > 200
