"""Everybody can read and operate the page: contrast in both themes, names for screen readers, and the keyboard alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compose_sim.core.report.report import Cause, CheckResult, FaultReport, Place, Report
from tests.builders import a_report
from tests.view.browser import CHROMIUM, Tab, a_tab
from tests.view.test_browser import a_page

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed (scripts/browser.sh)")

TOO_FAINT = (Path(__file__).parent / "contrast.js").read_text()
REACHED = """(() => {
  const at = document.activeElement;
  if (at === document.body) return "";
  at.dataset.reached = 1;
  return `${at.id || at.getAttribute("aria-label") || at.textContent} ${getComputedStyle(at).outlineStyle}`;
})()"""
UNREACHED = """[...document.querySelectorAll("button, select, input, summary, a[href], [tabindex]")]
  .filter((each) => each.checkVisibility() && !each.dataset.reached).map((each) => each.outerHTML)"""


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with a_tab() as made:
        yield made


def a_report_of_everything() -> Report:
    """Return a hang, after a fault that was healed and one that was not, with a check of each status."""
    checks = tuple(
        CheckResult(id="set-epoch", status=status, detail="d", fix="f", place=Place(file="a.py", line=3), ranks=(1,))
        for status in ("failed", "warned", "passed", "not-applicable")
    )
    faults = (
        FaultReport(id="a", kind="pause", nodes=("node-1",), text="node-1 paused", begun_s=3.5, healed_s=4.5),
        FaultReport(id="b", kind="isolate", nodes=("node-3",), text="node-3 isolated", begun_s=3.6),
    )
    cause = Cause(node="node-2", rank=2, kind="hang", message="rank 2 sleeps\nin a.py")
    return a_report(verdict="hung", cause=cause, checks=checks, faults=faults, notes=("a note",))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_text_stands_out_from_what_is_behind_it(tab: Tab, tmp_path: Path, scheme: str, width: int) -> None:
    tab.open(a_page(tmp_path, a_report_of_everything(), stalls=True), width=width, scheme=scheme)
    tab.wait_for("document.querySelector('footer')")
    tab.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    tab.run(
        "(() => { const box = document.querySelector('#logs input'); box.value = 'src'; box.dispatchEvent(new Event('input')); })()"
    )
    texts, faint = tab.run(TOO_FAINT)

    assert texts > 100
    assert faint == []
    assert tab.run("document.documentElement.scrollWidth") == width


def test_the_keyboard_reaches_everything_that_acts_in_order_and_shows_where_it_is(tab: Tab, tmp_path: Path) -> None:
    tab.open(a_page(tmp_path, a_report_of_everything(), stalls=True))
    tab.wait_for("document.querySelector('footer')")
    reached = []
    for _ in range(200):
        for kind in ("rawKeyDown", "keyUp"):
            tab.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        at = tab.run(REACHED)
        if not at:
            break
        reached.append(at)

    assert reached[0] == "Skip to the run solid"
    assert [each for each in reached if each.endswith("none")] == []
    assert tab.run(UNREACHED) == []


def test_whatever_can_be_operated_has_a_name_for_screen_readers(tab: Tab, tmp_path: Path) -> None:
    tab.open(a_page(tmp_path, a_report_of_everything(), stalls=True))
    tab.wait_for("document.querySelector('footer')")
    tab.call("Accessibility.enable")
    nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
    operated = [
        node
        for node in nodes
        if any(each["name"] == "focusable" and each["value"]["value"] for each in node.get("properties", []))
        and node["role"]["value"] not in ("RootWebArea", "menuListOption", "option")
    ]

    assert len(operated) > 15
    assert [node["role"]["value"] for node in operated if not node["name"]["value"]] == []
