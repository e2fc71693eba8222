"""When `make bench-against` calls a revision slower, that each tree runs its own code, and the plots."""

from __future__ import annotations

import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from bench.against import is_slower, measure
from bench.plot import Curve, log_log_plot
from bench.setting import Setting
from tests.builders import ROOT


@pytest.mark.parametrize(
    ("ours", "theirs", "slower"),
    [
        ([1.2, 1.3, 1.4], [1.0, 1.1, 1.15], True),
        ([1.2, 1.3, 1.4], [1.0, 1.1, 1.25], False),  # as fast as their slowest
        ([1.05, 1.06, 1.07], [1.0, 1.01, 1.02], False),  # by less than a tenth
        ([0.5, 0.6], [1.0, 1.1], False),
        ([], [1.0], True),  # ours always fails
        ([1.0], [], False),  # theirs has no such command
    ],
)
def test_a_row_is_slower_if_neither_a_tenth_nor_the_noise_explains_it(
    ours: list[float], theirs: list[float], slower: bool
) -> None:
    assert is_slower(ours, theirs) is slower


def test_each_tree_runs_its_own_code(tmp_path: Path) -> None:
    setting = Setting(repeats=2, folder=tmp_path, prefix="bench-test", environment={"PATH": ""})
    broken = shutil.copytree(ROOT / "compose_sim", tmp_path / "broken" / "compose_sim")
    (broken / "__main__.py").write_text("def main():\n    raise SystemExit(3)\n")
    rows = {unit: (ours, theirs) for unit, ours, theirs in measure(setting, ["--version"], ROOT, broken.parent)}
    assert {unit: (len(ours), len(theirs)) for unit, (ours, theirs) in rows.items()} == {"s": (2, 0), "CPU s": (2, 0)}


def test_a_plot_is_xml_with_a_line_and_a_name_for_each_curve() -> None:
    curves = [Curve("up <1>", [(1, 0.5), (64, 40)]), Curve("ps", [(1, 0.4), (8, 0.5), (64, 40)])]
    drawing = ElementTree.fromstring(log_log_plot(curves, across="nodes", up="seconds"))

    lines = [line.attrib["points"].split() for line in drawing.findall(".//{*}polyline")]
    assert [len(points) for points in lines] == [2, 3]
    assert lines[0][-1] == lines[1][-1]
    heights = {text.text: float(text.attrib["y"]) for text in drawing.findall(".//{*}text")}
    assert abs(heights["up <1>"] - heights["ps"]) >= 16  # names at the same point do not overlap
    assert all(re.fullmatch(r"\d+\.\d,\d+\.\d", point) for points in lines for point in points)
