"""The page in a real browser: what a reader sees of a run, and that hostile text does nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compose_sim.core.report.bottleneck import RankTimes
from compose_sim.core.report.report import Cause, CheckResult, ExpectationResult, FaultReport, Place, Report, Timings
from compose_sim.core.state.timeline import LineSpan, Span
from compose_sim.core.view.page import PageFold
from compose_sim.view.bundle import report_page
from tests.builders import a_plan, a_report, an_event
from tests.core.story import Story
from tests.view.browser import CHROMIUM, Tab, a_tab

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed (scripts/browser.sh)")
HOSTILE = "</script><img src=x onerror=document.title='owned'>\x1b[31mred\x1b[0m"


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with a_tab() as made:
        yield made


def a_page(
    folder: Path,
    report: Report,
    *,
    ranks: int = 4,
    steps: int = 40,
    stalls: bool = False,
    what: str = "barrier #1",
    sources: list[Any] | None = None,
) -> str:
    """Write the page of a run with these ranks and steps, in each of which rank 2 is late; return its address."""
    plan = a_plan(nodes=ranks)
    story = Story(plan).starts(1.0, *range(ranks)).round(2.0, *range(ranks)).trains(3.0, 1, steps)
    fold = PageFold(plan)
    fold.add_events([*story.events, *(an_event("rank-started", 2.5, rank=rank, pid=1) for rank in range(ranks))])
    if stalls:
        story = Story(plan).starts(1.0, *range(ranks)).round(2.0, *range(ranks))
        for rank in range(ranks):
            how = (
                {"doing": "sleeping", "place": ["a.py", 9, "g", HOSTILE]} if rank == 2 else {"waiting_in": "barrier #3"}
            )
            story.tell(30.0, "stalled", rank, since_s=15.0, frames=[["a.py", 9, HOSTILE]], **how)
        fold.add_events(story.events)
    for step in range(steps):
        for rank in range(ranks):
            begun = 3.0 + step * 0.1
            fold.add_spans([Span(rank, "backward", begun, 0.02, step)])
            fold.add_spans([Span(rank, "waiting", begun + 0.02, 0.05, step, what, 2)] if rank != 2 else [])
            fold.add_spans([Span(rank, "moving", begun + 0.07, 0.02, step, "all_reduce #1")])
            fold.add_lines([LineSpan(rank, "train.py", 5, begun + 0.02, 0.05)] if rank == 2 else [])
    fold.add_events(an_event("log", 5.0, rank=line % ranks, line=f"{line} {HOSTILE}") for line in range(5000))
    fold.add_events(
        an_event("metric", 5.0, rank=rank, step=step, loss=1.0 / (step + 1)) for rank in (0, 1) for step in range(9)
    )
    with_gpus = {"gpu_use": 0.75, "gpu_memory_bytes": 3 << 30}
    fold.add_events(
        an_event("usage", t, node=node, cpu_s=t / 2, memory_bytes=1 << 30, sent_bytes=int(t) << 20, **gpus)
        for t in (3.0, 4.0, 5.0)
        for node, gpus in (("node-0", with_gpus), ("node-1", {}))
    )
    file = folder / "page.html"
    file.write_text(report_page({**fold.take(report=report, is_over=True, samples=[]), "sources": sources or []}))
    return file.as_uri()


def test_a_reader_sees_every_section_and_hostile_text_does_nothing(tab: Tab, tmp_path: Path) -> None:
    checks = (CheckResult(id="set-epoch", status="failed", detail=HOSTILE, fix="f", place=Place(file="a.py", line=3)),)
    report = a_report(verdict="failed", cause=Cause(node="node-1", rank=1, kind="exit", message=HOSTILE), checks=checks)
    tab.open(a_page(tmp_path, report))
    tab.wait_for("document.querySelector('footer')")

    shown = tab.run("[...document.querySelectorAll('nav a')].map((each) => each.getAttribute('href'))")
    assert shown == ["#overview", "#timeline", "#cluster", "#shares", "#checks", "#metrics", "#logs"]
    assert tab.run("document.querySelector('#verdict .cause span').textContent") == f"rank 1 on node-1: {HOSTILE}"
    assert tab.run("document.images.length") == 0
    assert tab.run("document.title") == "✘ demo · composesim"
    assert tab.run("document.querySelectorAll('#log .line').length") < 60
    tab.run("document.querySelector('#log').scrollTop = 1e6")
    tab.wait_for("document.querySelector('#log').textContent.includes('4999 ')")
    assert tab.run("document.querySelector('#log .a31').textContent") == "red"
    tab.run(
        "(() => { const box = document.querySelector('#logs input'); box.value = '123 '; box.dispatchEvent(new Event('input')); })()"
    )
    assert tab.run("document.querySelector('#log-count').textContent") == "5 lines"
    assert tab.errors == []


def test_the_cluster_follows_the_timeline_and_keys_zoom(tab: Tab, tmp_path: Path) -> None:
    fault = FaultReport(id="f", kind="pause", nodes=("node-1",), text="node-1 paused", begun_s=3.5, healed_s=4.5)
    tab.open(a_page(tmp_path, a_report(faults=(fault,))))
    tab.wait_for("document.querySelector('footer')")
    tab.run("setCursor(3.04)")

    assert "Ranks 0, 1 and 3 wait for rank 2 in barrier #1" in tab.run("document.querySelector('#picture').textContent")
    tab.run("setCursor(4.04)")
    assert tab.run("document.querySelector('.node.held') !== null")
    assert tab.run("document.querySelector('#waits button').textContent").startswith("step ")
    tab.run("document.querySelector('#waits button').click()")
    tab.wait_for("!lanes.fitted && lanes.to - lanes.from < 0.2")
    tab.run("lanes.canvas.dispatchEvent(new KeyboardEvent('keydown', { key: '0', bubbles: true }))")
    tab.wait_for("lanes.fitted")
    assert tab.errors == []


def test_the_ring_of_an_all_reduce_goes_through_all_nodes_of_a_larger_cluster(tab: Tab, tmp_path: Path) -> None:
    tab.open(a_page(tmp_path, a_report(world_size=10, nodes=()), ranks=10))
    tab.wait_for("document.querySelector('footer')")
    moving = "document.querySelectorAll('#picture .ring.moves').length"

    tab.run("setCursor(3.08)")
    assert tab.run(moving) == 10
    assert "10 ranks are in all_reduce #1: data move around the ring" in tab.run(
        "document.querySelector('#picture').textContent"
    )
    tab.run("setCursor(3.04)")
    assert tab.run(moving) == 0
    assert tab.errors == []


def test_the_words_of_a_fault_at_the_end_of_a_run_fit_in_its_node_and_beside_the_timeline(
    tab: Tab, tmp_path: Path
) -> None:
    words = "node-0, node-1, node-2 and node-3 cannot reach each other"
    nodes = tuple(f"node-{number}" for number in range(4))
    fault = FaultReport(id="f", kind="partition", nodes=nodes, text=words, begun_s=6.5)
    tab.open(a_page(tmp_path, a_report(faults=(fault,))))
    tab.wait_for("document.querySelector('footer')")
    tab.run("setCursor(6.52)")

    widths = "[each.getBBox().width, each.querySelector('.node').getBBox().width]"
    found = tab.run(f"[...document.querySelectorAll('#picture g:has(> .node.held)')].map((each) => {widths})")
    assert len(found) == 2
    assert all(whole <= box + 1 for whole, box in found)
    drawn = (
        "(() => { const pen = lanes.canvas.getContext('2d'), drawn = []; pen.fillText = (...all) => drawn.push(all); paint(); "
        "delete pen.fillText; return drawn.filter(([text]) => text.startsWith('node-0, ')).map(([text, x]) => "
        "x + pen.measureText(text).width <= lanes.width); })()"
    )
    assert tab.run(drawn) == [True]


def test_the_stacks_of_a_hang_begin_with_the_culprit(tab: Tab, tmp_path: Path) -> None:
    report = a_report(verdict="hung", cause=Cause(node="node-2", rank=2, kind="hang", message="rank 2 sleeps"))
    tab.open(a_page(tmp_path, report, stalls=True), width=390, scheme="dark")
    tab.wait_for("document.querySelector('footer')")

    assert tab.run("[...document.querySelectorAll('.stacks h3')].map((each) => each.textContent)") == [
        "rank 2 the cause",
        "ranks 0–1, 3 collateral",
    ]
    assert (
        tab.run("verdictPill({ ...run.now, verdict: 'running', is_over: false }).textContent") == "● makes no progress"
    )
    assert tab.run("marksOf(run.now).map((each) => [each.text, each.rank])") == [["all wait for rank 2", 2]]
    assert tab.run("document.documentElement.scrollWidth") == 390  # nothing makes a phone scroll sideways
    assert tab.errors == []


def test_what_nodes_used_is_drawn_with_the_gpus_of_those_that_have_some(tab: Tab, tmp_path: Path) -> None:
    tab.open(a_page(tmp_path, a_report()))
    tab.wait_for("document.querySelector('footer')")

    labels = tab.run("[...document.querySelectorAll('#metrics svg')].map((each) => each.getAttribute('aria-label'))")
    assert labels[1:3] == ["CPUs in use: node-0 0.5, node-1 0.5", "Memory: node-0 1.00 GiB, node-1 1.00 GiB"]
    assert labels[-2:] == ["GPU use: node-0 75 %", "GPU memory: node-0 3.00 GiB"]


def test_a_failed_check_colors_the_verdict_as_in_the_terminal(tab: Tab, tmp_path: Path) -> None:
    checks = (
        CheckResult(id="set-epoch", status="failed", detail="d"),
        CheckResult(id="params-in-sync", status="failed", detail="d", follows="set-epoch"),
    )
    tab.open(a_page(tmp_path, a_report(checks=checks)))
    tab.wait_for("document.querySelector('footer')")

    pill = "((pill) => [pill.className, pill.textContent])(document.querySelector('.pill'))"
    assert tab.run(pill) == ["pill warn", "! passed, but set-epoch failed"]


def test_64_ranks_have_a_lane_each_and_a_time_is_shown_in_lanes_cluster_and_logs(tab: Tab, tmp_path: Path) -> None:
    tab.open(a_page(tmp_path, a_report(world_size=64, nodes=()), ranks=64))
    tab.wait_for("document.querySelector('footer')")
    assert tab.run("document.querySelectorAll('#picture svg > g').length") == 64
    assert tab.run("[ranges([3, 1, 2, 6]), ranges([5]), ranges([])]") == ["1–3, 6", "5", ""]
    last = "AXIS + marksHeight + 63 * laneHeight(64) + 4"
    tab.wait_for(f"lanes.canvas.getContext('2d').getImageData(200, {last}, 900, 1).data.some((each) => each)")

    tab.run("run.logs.forEach((line, index) => { line[2] = index / 1000; })")
    go = "(() => {{ const box = document.getElementById('goto'); box.value = '{}'; box.dispatchEvent(new Event('change')); }})()"
    tab.run(go.format("3.44"))
    tab.wait_for("!lanes.fitted && lanes.from < 3.44 && 3.44 < lanes.to")
    assert "63 ranks wait for rank 2 in barrier #1" in tab.run("document.querySelector('#picture').textContent")
    assert tab.run("logs.lines[Math.round(logs.box.scrollTop / ROW) + 2]") == 3440
    tab.run(go.format("99:00"))
    assert tab.run("document.querySelector('#goto:invalid') !== null")
    assert tab.errors == []


def test_an_address_names_a_moment_a_rank_and_a_section_and_follows_what_is_held(tab: Tab, tmp_path: Path) -> None:
    tab.open(f"{a_page(tmp_path, a_report())}#t=3.44&rank=2&section=logs")
    tab.wait_for("document.querySelector('footer') && lanes.pinned")
    assert tab.run("[lanes.cursor, lanes.rank]") == [3.44, 2]
    assert "Ranks 0, 1 and 3 wait for rank 2" in tab.run("document.querySelector('#moment-words').textContent")

    tab.run("lanes.canvas.focus()")
    tab.run("lanes.canvas.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowDown', bubbles: true }))")
    assert tab.run("[lanes.rank, readPlace()]") == [3, {"t": "3.440", "rank": "3", "section": "logs"}]
    tab.run("lanes.canvas.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight', bubbles: true }))")
    assert tab.run("Math.round(lanes.cursor * 1000)") == 3545
    tab.run("lanes.canvas.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true }))")
    assert tab.run("[lanes.pinned, lanes.cursor, readPlace().t]") == [False, None, None]
    tab.run("lanes.canvas.dispatchEvent(new KeyboardEvent('keydown', { key: '?', bubbles: true }))")
    assert tab.run("document.querySelectorAll('#help[open] tr').length") == tab.run("KEYS.length")
    assert tab.errors == []


def test_steps_have_a_late_rank_and_a_critical_path_that_leads_to_it(tab: Tab, tmp_path: Path) -> None:
    tab.open(a_page(tmp_path, a_report()))
    tab.wait_for("document.querySelector('footer')")

    late = "stepsInOrder().map((step) => [0, 1, 2, 3].map((rank) => Math.round(1000 * lateness(step, rank))))"
    assert tab.run(late) == [[0, 0, 50, 0]] * 40
    path = "pathOf(stepsInOrder()[7]).map(({ rank, from, to }) => [rank, Math.round(1000 * (to - from))])"
    assert tab.run(path)[0] == [2, 70]
    assert tab.run("blamed().map((each) => [each.late, each.count, Math.round(100 * each.cost)])") == [[2, 40, 200]]
    tab.run("setCursor(3.72)")
    why = "Step 7 took 90 ms: 70 ms rank 2 (at train.py, line 5: 50 ms, backward 20 ms)"
    assert why in tab.run("document.getElementById('why').textContent")


def test_places_lead_to_the_source_which_has_a_dot_for_each_rank(tab: Tab, tmp_path: Path) -> None:
    tab.open(
        a_page(tmp_path, a_report(), what="barrier #1 (train.py, line 3)", sources=[["train.py", 1, list("abcde")]])
    )
    tab.wait_for("document.querySelector('footer')")
    tab.run("setCursor(3.04)")

    dots = "[...document.querySelectorAll('#line-3 .dot')].map((each) => [each.textContent, each.classList.contains('late')])"
    assert tab.run(dots) == [["0", False], ["1", False], ["3", False]]
    late = dots.replace("line-3", "line-5")
    assert tab.run(late) == [["2", True]]  # in no collective: samples know where it is
    bars = """[...document.querySelectorAll('#source .heat b')].map(
        (each) => [each.closest('[id]').id, each.className, each.nextSibling.textContent])"""
    assert tab.run(bars) == [["line-3", "waited", "6.00 s"], ["line-5", "own", "2.00 s"]]
    waits = tab.run("document.getElementById('waits').textContent")
    assert "at train.py, line 5" in waits
    assert "3 ranks for rank 2, the longest of 38" in waits  # those of the first step, which is a warm-up, are left out
    tab.run("document.querySelector('#waits .entries .small a').click()")
    assert tab.run("document.querySelector('#source .at').id") == "line-3"
    assert tab.errors == []


def test_a_drag_over_the_heat_map_shows_these_steps(tab: Tab, tmp_path: Path) -> None:
    tab.open(a_page(tmp_path, a_report()))
    tab.wait_for("document.querySelector('footer')")
    tab.run(
        """(() => {
            heat.canvas.setPointerCapture = () => {};
            const left = labelWidth(), wide = (heat.canvas.clientWidth - left) / 40, box = heat.canvas.getBoundingClientRect();
            const at = (kind, step) => heat.canvas.dispatchEvent(
                new PointerEvent(kind, { clientX: box.left + left + (step + 0.5) * wide, clientY: box.top + 3 }));
            at("pointerdown", 10); at("pointermove", 15); at("pointerup", 15);
        })()"""
    )
    shown = tab.run(
        "stepsInOrder().filter((each) => each.began >= lanes.from - 1e-6 && each.ended <= lanes.to + 1e-6).length"
    )
    assert (shown, tab.run("lanes.fitted")) == (6, False)


def test_what_a_reader_wants_elsewhere_can_be_copied(tab: Tab, tmp_path: Path) -> None:
    cause = Cause(
        kind="exception", rank=1, node="node-1", message="ValueError: bad", traceback='  File "train.py", line 4, in f'
    )
    report = a_report(verdict="failed", cause=cause)
    tab.open(a_page(tmp_path, report, sources=[["train.py", 1, list("abcdefg")]]))
    tab.wait_for("document.querySelector('footer')")
    copies = "[...document.querySelectorAll('#verdict .copy')].map((each) => each.title)"

    assert tab.run(copies) == [
        "Copy: rank 1 on node-1: ValueError: bad",
        "Copy: composesim logs --run demo --rank 1",
        "Copy: train.py:4",
        'Copy:   File "train.py", line 4, in f',
    ]


def test_a_narrow_step_of_other_code_has_no_color_of_the_little_that_is_known_of_it(tab: Tab, tmp_path: Path) -> None:
    """In 70 of 90 ms, rank 2 is in its own code; rank 0 waits for most of them."""
    tab.open(a_page(tmp_path, a_report(), steps=400), width=390)
    tab.wait_for("document.querySelector('footer')")
    colors = """[0, 2].map((rank) => {
        const drawn = [], pen = { set fillStyle(value) { drawn.push(value); }, fillRect() {} };
        cells(pen, rank, 0, 30, COLORS, 0);
        return [...new Set(drawn)];
    })"""

    assert tab.run(colors) == [["--waiting"], []]


def test_a_straggler_is_shown_with_its_own_line(tab: Tab, tmp_path: Path) -> None:
    late = {"late_s": 2.0, "late_at": "train.py, line 5", "straggler_score": 0.5}
    times = RankTimes(rank=2, steps_s=4.0, data_s=0.0, collectives=40, last=40, **late)
    tab.open(a_page(tmp_path, a_report(rank_times=(times,)), sources=[["train.py", 1, list("abcdefg")]]))
    tab.wait_for("document.querySelector('footer')")

    assert "rank 2 (node-2) holds up the others: last in 40 of 40" in tab.run(
        "document.querySelector('.cause span').textContent"
    )
    assert tab.run("document.querySelector('#verdict .source .at i').textContent") == "5"


def test_a_wait_that_is_open_is_in_the_verdict_and_accuses_nobody_else(tab: Tab, tmp_path: Path) -> None:
    tab.open(a_page(tmp_path, a_report()))
    tab.wait_for("document.querySelector('footer')")
    times = {
        "last": 39,
        "collectives": 40,
        "late_s": 9,
        "held_up_s": 9,
        "steps_s": 20,
        "data_s": 0,
        "straggler_score": 0.5,
    }
    waits = {rank: [5, "barrier #9", 7.0, 8.0, [2]] for rank in (0, 1, 3)}
    live = {
        "is_over": False,
        "verdict": "running",
        "cause": None,
        "t": 15.0,
        "current": waits,
        "at": {2: "/a/train.py:4"},
    }
    live |= {"straggler": {"rank": 1, **times}, "rank_times": [{"rank": 1, **times}]}
    tab.run(f"Object.assign(run.now, {json.dumps(live)}); ONCE.delete(run.now); render()")

    assert tab.run("document.querySelector('#nav .pill').textContent") == "● waiting 8 s for rank 2"
    assert "Ranks 0, 1 and 3 wait for rank 2 in barrier #9. Rank 2 is at train.py, line 4." in tab.run(
        "document.querySelector('.cause span').textContent"
    )
    assert tab.run("document.querySelector('#verdict').textContent.includes('rank 1 (')") is False
    assert tab.run("[...document.querySelectorAll('#shares .odd')].map((each) => each.cells[0].textContent)") == ["2"]
    assert tab.run("document.querySelector('#waits .entries b').textContent") == "8.00 s"


def test_a_traceback_is_one_error_and_lines_that_are_left_out_are_told(tab: Tab, tmp_path: Path) -> None:
    tab.open(a_page(tmp_path, a_report()))
    tab.wait_for("document.querySelector('footer')")
    lines = [
        *(
            "Traceback (most recent call last):",
            '  File "a.py", line 3, in f',
            "    1 / 0",
            "ZeroDivisionError: no",
            "fine",
        ),
        *("[rank1]: Traceback (most recent call last):", "[rank1]:   File", "[rank1]: KeyError: 1", "WARN slow"),
    ]
    levels = f"leveled({json.dumps([[1, line, 0.0] for line in lines])}, new Set()).map((each) => each[3])"
    assert tab.run(levels) == [2, 2, 2, 2, 0, 2, 2, 2, 1]
    tab.run("Object.assign(run, { logs: [[0, 'a', 1, 2], [-1, '7 lines are left out here', 1, 0], [0, 'b', 2, 0]] })")
    tab.run("Object.assign(run.now, { lines_left_out: 7 }); Object.assign(logs, { level: 'error' }); filterLogs()")
    assert tab.run("logs.lines") == [0, 1]
    assert tab.run("document.getElementById('log-count').textContent").startswith("1 of 10 lines")


def test_one_value_is_no_metric_and_what_composesim_stopped_has_not_failed(tab: Tab, tmp_path: Path) -> None:
    tab.open(a_page(tmp_path, a_report(metrics={"lr": 0.1, "accuracy": 0.5, "loss": 0.2})))
    tab.wait_for("document.querySelector('footer')")
    tab.run("run.metrics.set('lr', new Map([[0, [[0, 0.1]]]]))")
    tab.run("run.metrics.set('accuracy', new Map([[0, [[0, 0.1], [1, 0.5]]]]))")
    assert tab.run("metricNames(run.now)") == ["loss", "accuracy"]

    stopped = {"rank": 0, "node": "node-0", "stopped": True, "signal": 15, "exit_code": None}
    now = f"{{ ...run.now, ranks: [{json.dumps(stopped)}], phases: {{ 'node-0': 'exited' }} }}"
    assert tab.run(f"stateOfNode({now}, {{ name: 'node-0', exit_code: 143 }})") == {
        "words": "stopped by composesim",
        "title": "exit code 143",
    }


def test_a_scenario_shows_what_it_expected(tab: Tab, tmp_path: Path) -> None:
    met = ExpectationResult(id="exit_code", wanted="0", status="passed", detail="0")
    tab.open(a_page(tmp_path, a_report(expectations=(met,))))
    tab.wait_for("document.querySelector('footer')")

    assert (
        tab.run("document.querySelector('#scenario .cause').textContent") == "1 of 1 expectation of the scenario met."
    )


def test_waits_of_two_rounds_are_two_and_a_lane_names_each_node_of_its_rank(tab: Tab, tmp_path: Path) -> None:
    tab.open(a_page(tmp_path, a_report()))
    tab.wait_for("document.querySelector('footer')")
    tab.run(
        """(() => {
            const rounds = [0, 5].map((began_s, generation) => ({ generation, began_s, world_size: 4, nodes: [] }));
            Object.assign(run.now, { t: 9, rounds, lives: { 0: [[2, 4, "node-0"], [5, 9, "node-1"]] } });
            run.waits.clear(); run.steps.clear();
            for (const began of [3, 6]) {
                const span = { rank: 0, kind: 5, began, lasted: 0.5, step: 1, text: 1, late: 2 };
                countWait(span); countStep(span);
            }
        })()"""
    )
    assert tab.run("[...run.waits.values()].map((each) => each.ranks)") == [1, 1]
    assert tab.run("[...run.steps.values()].map((each) => stepName(each))") == ["round 1, step 1", "round 2, step 1"]
    tab.run("fit(); paint()")
    named = """((words) => {
        const pen = { measureText: () => ({ width: 1 }), fillText: (text) => words.push(text), fillRect() {} };
        places(pen, 0, 0, 30, 0, '', '');
        return words;
    })([])"""
    assert tab.run(named) == ["node-0", "node-1"]


def test_a_failure_has_a_mark_its_own_frames_and_a_lane_that_says_how_the_rank_ended(tab: Tab, tmp_path: Path) -> None:
    library = '  File "/usr/lib/python3/site-packages/torch/nn.py", line 9, in call\n    f()\n'
    traceback = (
        f'Traceback (most recent call last):\n  File "train.py", line 4, in f\n    g()\n{library}ValueError: bad'
    )
    cause = Cause(kind="exception", rank=1, node="node-1", message="ValueError: bad\nmore", traceback=traceback)
    report = a_report(verdict="failed", cause=cause, timings=Timings(total_s=9.0, output_s=26.9))
    tab.open(a_page(tmp_path, report, sources=[["train.py", 1, list("abcdefg")]]))
    tab.wait_for("document.querySelector('footer')")
    tab.run("Object.assign(run.now, { t: 9, starts: { 'node-1': 0.5 } }); run.now.lives[1] = [[2, 4, 'node-1']]")
    tab.run("ONCE.delete(run.now); BUILT.clear(); render(); fit(); paint()")

    assert tab.run("marksOf(run.now).map((each) => [each.began, each.text])") == [
        [4, "rank 1 on node-1: ValueError: bad"]
    ]
    frames = "[...document.querySelectorAll('#verdict .frames .frame')].map((each) => each.textContent)"
    assert tab.run(frames) == ["train.py:4 f"]
    assert "1 frame of libraries" in tab.run("document.querySelector('#verdict details summary').textContent")
    assert "26.9 s more to show the output" in tab.run("document.querySelector('.tiles').textContent")
    drawn = """((words) => {
        const pen = { measureText: () => ({ width: 1 }), fillText: (text) => words.push(text), fillRect() {} };
        startOf(pen, 1, 0, 30, 0, ''); absences(pen, 1, 0, 30, 0, '');
        return words;
    })([])"""
    assert tab.run(drawn) == ["node starts", "nodes meet", "imports", "failed first"]


def test_the_play_head_goes_on_by_itself_and_takes_the_other_parts_with_it(tab: Tab, tmp_path: Path) -> None:
    tab.open(a_page(tmp_path, a_report()))
    tab.wait_for("document.querySelector('footer')")
    tab.run("document.getElementById('play').click()")
    tab.wait_for("lanes.cursor > 2.5 && document.getElementById('play-time').textContent.endsWith(' s')")
    tab.run("document.getElementById('play').click()")
    at = tab.run("lanes.cursor")

    assert tab.run("[player.timer, lanes.cursor]") == [None, at]
    assert tab.run("document.getElementById('moment').textContent")
    tab.run("document.getElementById('release').click()")
    assert tab.run("lanes.cursor") is None
