"""The style of figures: what a grey printer and colour-blind readers need, checked on the figures themselves."""

import numpy as np
import pytest

from cmdpkit.drawing import METHODS, STYLES, band, clip, curve, figure, parsed_formats, paths, save, styles


def texts(axis):
    return [text.get_text() for text in axis.texts]


def test_every_part_of_a_style_tells_curves_apart():
    for part in ("colour", "line", "marker"):
        assert len({getattr(style, part) for style in STYLES}) == len(STYLES)


def test_methods_keep_their_style():
    names = ["mine", "npg-pd", "pmd-pd(step=1)", "pmd-pd"]
    found = styles(names)
    assert found["npg-pd"] == METHODS["npg-pd"]
    assert found["pmd-pd"] == METHODS["pmd-pd"]
    assert len(set(found.values())) == len(names)
    assert styles(["pmd-pd(step=1)"])["pmd-pd(step=1)"] == METHODS["pmd-pd"]


def test_clipped_curves_are_said_to_be():
    _, axes = figure(columns=3)
    x = np.arange(1.0, 30.0)
    for axis, y in zip(axes[0], (x, x - 20.0, 0.1 * x), strict=True):
        curve(axis, x, y, STYLES[0])
        axis.axhline(100.0)  # a line across the axes is no curve
    for axis, expected in zip(axes[0], (["above 10"], ["below 0"], []), strict=True):
        clip(axis, 0.0, 10.0)
        assert [text.removeprefix("clipped: curves go on ") for text in texts(axis)] == expected
        assert axis.get_ylim() == (0.0, 10.0)


def test_bands_that_leave_the_axes_count_as_clipped():
    _, axes = figure()
    band(axes[0, 0], [1, 2], [0.0, 0.0], [1.0, 5.0], STYLES[0])
    clip(axes[0, 0], 0.0, 2.0)
    assert texts(axes[0, 0]) == ["clipped: curves go on above 2"]


def test_bands_stay_within_what_is_possible():
    _, axes = figure()
    band(axes[0, 0], [1, 2], [-5.0, 1.0], [3.0, 9.0], STYLES[0], 0.0, 8.0)
    heights = axes[0, 0].collections[0].get_paths()[0].vertices[:, 1]
    assert heights.min() == 0.0
    assert heights.max() == 8.0


def test_markers_are_few_and_spread():
    _, axes = figure(columns=2)
    axes[0, 1].set_xscale("log")
    x = np.arange(1, 1_001)
    even, log = (np.array(curve(axis, x, x, STYLES[0]).get_markevery()) for axis in axes[0])
    assert len(even) == len(log) == 8
    assert np.ptp(np.diff(even)) <= 1
    assert log[3] < 20 < 120 < even[1]


def test_files_and_formats(tmp_path):
    assert [p.name for p in paths("a/curve.png", ["pdf", "svg", "png"])] == ["curve.png", "curve.pdf", "curve.svg"]
    assert [p.name for p in paths("curve.v2", ["pdf"])] == ["curve.v2.pdf"]
    assert parsed_formats(" PDF, .svg") == ("pdf", "svg")
    with pytest.raises(ValueError, match=r"must end in \.png, \.pdf, \.svg"):
        paths("curve.jpg")
    with pytest.raises(ValueError, match="unknown format 'bmp'"):
        parsed_formats("bmp")
    drawing, axes = figure()
    curve(axes[0, 0], [1, 2], [1, 2], STYLES[0], "a label")
    axes[0, 0].legend()
    save(drawing, tmp_path / "a.svg", ["pdf"])
    assert "a label" in (tmp_path / "a.svg").read_text()  # text, not outlines
    assert b"/Type0" in (tmp_path / "a.pdf").read_bytes()  # a font that can be searched
