"""Measure the page of a run in a headless Chromium: `python -m bench.page`. Exit code 1 if a goal is missed.

The runs are made here, so that their sizes are known; the numbers are those of the browser. `--only frames` measures one row.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import compose_sim.view
from compose_sim.core.events.events import Event
from compose_sim.core.state.timeline import Span
from compose_sim.core.view.page import Message, PageFold
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.node.shared.progress_page import ProgressPage, WaitIn
from compose_sim.view.bundle import live_page, report_page
from compose_sim.view.server import ViewServer
from tests.builders import a_plan, a_report, an_event
from tests.core.story import Story
from tests.view.browser import Tab, a_tab

_FRAMES = 60
_WATCHED_S = 15.0


def _message(nodes: int, steps: int, lines: int = 0) -> Message:
    """Return a run of nodes with one rank each, three spans per rank and step, and this many lines per rank."""
    plan = a_plan(nodes=nodes)
    story = Story(plan).starts(1.0, *range(nodes)).round(2.0, *range(nodes)).trains(3.0, 1, 1)
    fold = PageFold(plan)
    fold.add_events([*story.events, *(an_event("rank-started", 2.5, rank=rank, pid=1) for rank in range(nodes))])
    for step in range(steps):
        begun, late = 3.0 + step * 0.1, step % nodes
        for rank in range(nodes):
            fold.add_spans([Span(rank, "forward", begun, 0.02, step), Span(rank, "backward", begun + 0.02, 0.03, step)])
            fold.add_spans(
                [Span(rank, "waiting", begun + 0.05, 0.04, step, "all_reduce #1", late)] if rank != late else []
            )
    fold.add_events(
        an_event("log", 9.0, rank=rank, line=f"epoch {line // 100} batch {line} loss {1 / (line + 1):.6f}")
        for line in range(lines)
        for rank in range(nodes)
    )
    return fold.take(report=a_report(world_size=nodes), is_over=True, samples=[], sources={})


def _load(tab: Tab, folder: Path, message: Message) -> float:
    """Open the page of a finished run, and return how many seconds after the start of the navigation it was there, at most."""
    file = folder / "page.html"
    file.write_text(report_page(message))
    tab.open(file.as_uri())
    tab.wait_for("document.querySelector('footer')")
    milliseconds: float = tab.run("new Promise((done) => requestAnimationFrame(() => done(performance.now())))")
    return milliseconds / 1000


def frames(tab: Tab, folder: Path) -> dict[str, float]:
    """Pan across 64 ranks, and return milliseconds of script per frame."""
    _load(tab, folder, _message(64, 130))
    took = tab.run(
        f"""(async () => {{
          zoom(0.3);
          const took = [];
          for (let frame = 0; frame < {_FRAMES}; frame += 1) {{
            const began = performance.now();
            lanes.from += 0.02; lanes.to += 0.02; lanes.cursor = (lanes.from + lanes.to) / 2;
            paint(); drawCluster();
            lanes.canvas.getContext("2d").getImageData(0, 0, 1, 1);
            took.push(performance.now() - began);
            await new Promise((done) => requestAnimationFrame(done));
          }}
          return took;
        }})()"""
    )
    return {"64 ranks: milliseconds per frame (30 frames per second: 33)": statistics.median(took)}


def nodes(tab: Tab, folder: Path) -> dict[str, float]:
    """Return the seconds until the page of 1,000 nodes is built."""
    return {"1,000 nodes: seconds to load (2)": _load(tab, folder, _message(1000, 8))}


def logs(tab: Tab, folder: Path) -> dict[str, float]:
    """Scroll and search 300,000 lines of each of four nodes, and return milliseconds."""
    _load(tab, folder, _message(4, 1))
    lines, ranks = 300_000, 4
    made = f"Array.from({{ length: {lines * ranks} }}, (_, n) => [n % {ranks}, `batch ${{n}} loss 0.123456`, n / 1000])"
    tab.run(f"(() => {{ run.logs = {made}; logs.taken = 0; logs.lines = []; addLogs(); }})()")
    scroll = tab.run(
        f"""(async () => {{
          const took = [];
          for (let frame = 0; frame < {_FRAMES}; frame += 1) {{
            const began = performance.now();
            logs.box.scrollTop = (logs.box.scrollHeight * frame) / {_FRAMES}; paintLogs(); logs.box.offsetHeight;
            took.push(performance.now() - began);
          }}
          return took;
        }})()"""
    )
    search = tab.run(
        "(() => { const t = performance.now(); logs.words = '99999'; filterLogs(); return performance.now() - t; })()"
    )
    name = f"{ranks} nodes of {lines:,} lines"
    return {
        f"{name}: milliseconds per frame of scrolling (33)": statistics.median(scroll),
        f"{name}: milliseconds to search (1000)": search,
    }


def size(_: Tab, folder: Path) -> dict[str, float]:
    """Return the megabytes of the file of a run of four nodes, with many steps and long logs."""
    text = report_page(_message(4, 4000, 20_000))
    (folder / "page.html").write_text(text)
    return {"4 nodes, 4,000 steps, 80,000 lines: MB of the file (2)": len(text.encode()) / 1e6}


def latency(tab: Tab, folder: Path) -> dict[str, float]:
    """Append steps to the events of a run, and return the seconds until the page shows them."""
    run = _running(folder, "live", 4)
    took = []
    with ViewServer(run) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tab.open(server.address)
        tab.wait_for("run.now && document.querySelector('footer')")
        for step in range(1001, 1009):
            event = Event(t=time.time(), kind="step", node="node-0", rank=0, generation=0, data={"step": step})
            began = time.monotonic()
            run.files.append("events/node-0.jsonl", event.to_json("live") + "\n")
            tab.wait_for(f"run.now.ranks.some((each) => each.step === {step})")
            took.append(time.monotonic() - began)
        server.shutdown()
    run.release()
    return {"seconds until an event is visible (1)": max(took)}


def opening(tab: Tab, folder: Path) -> dict[str, float]:
    """Open the live page of a finished run with long logs; return the seconds until their end is there, and until all is."""
    run = _running(folder, "long", 4)
    for rank in range(4):
        lines = (f"INFO trainer: rank {rank} has prepared batch {number} and goes on\n" for number in range(75_000))
        run.files.append(f"logs/node-{rank}.{rank}.log", "".join(lines))
    run.write_report(a_report(run="long", world_size=4))
    run.release()
    with ViewServer(run) as server:
        # As with `composesim view`, which is a process of its own
        process = multiprocessing.get_context("fork").Process(target=server.serve_forever)
        process.start()
        began = time.monotonic()
        tab.open(server.address)
        tab.wait_for("run.now && run.logs.length > 100 && document.querySelector('#log .line')")
        first = time.monotonic() - began
        tab.wait_for("run.logs.length === 300000")
        whole = time.monotonic() - began
        process.terminate()
        process.join()
    name = "300,000 lines: seconds until"
    return {f"{name} their end is shown (3)": first, f"{name} all are there (10)": whole}


def idle(tab: Tab, folder: Path) -> dict[str, float]:
    """Return the share of a core that the page of 32 ranks takes, 31 of which wait for one; in the browser and in the server."""
    run = _running(folder, "idle", 32)
    pages = [ProgressPage(run.path, f"node-{rank}", rank, 0) for rank in range(32)]
    for rank, page in enumerate(pages):
        if rank == 5:
            page.at_line(("/work/train.py", 17))
        else:
            page.wait_in(WaitIn("barrier #9 (train.py, line 19)", int(time.time() * 1e6), "0", 32, 9))

    def busy() -> float:
        return float(
            {each["name"]: each["value"] for each in tab.call("Performance.getMetrics")["metrics"]}["TaskDuration"]
        )

    with ViewServer(run) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tab.open(server.address)
        tab.call("Performance.enable")
        tab.wait_for("document.querySelector('#nav .pill.warn')")
        began, browser, ours = time.monotonic(), busy(), time.process_time()
        time.sleep(_WATCHED_S)
        share = [
            (busy() - browser) / (time.monotonic() - began),
            (time.process_time() - ours) / (time.monotonic() - began),
        ]
        server.shutdown()
    run.release()
    return {
        f"32 ranks that wait: share of a core, {what} (0.1)": value
        for what, value in zip(("page", "server"), share, strict=True)
    }


def weight(_: Tab, __: Path) -> dict[str, float]:
    """Return the kilobytes and the lines of the page without data."""
    files = sorted(Path(compose_sim.view.__path__[0], "page").iterdir())
    return {
        "the page alone: kB (200)": len(live_page().encode()) / 1e3,
        "the page alone: lines (2500)": sum(len(each.read_text().splitlines()) for each in files),
    }


def _running(folder: Path, name: str, ranks: int) -> RunFolder:
    """Return a run that this process runs, in which each rank has made a step."""
    run = RunFolder(folder / ".composesim" / "runs" / name)
    run.claim()
    run.clear(0, 0)
    plan = a_plan(nodes=ranks, run=name)
    run.write_plan(plan)
    now = time.time()
    story = Story(plan).starts(1.0, *range(ranks)).round(2.0, *range(ranks)).trains(3.0, 1, 1)
    for event in story.events:
        file = "journal/composesim" if event.node is None else f"events/{event.node}"
        run.files.append(f"{file}.jsonl", Event(**{**_fields(event), "t": now + event.t - 4.0}).to_json(name) + "\n")
    return run


def _fields(event: Event) -> dict[str, object]:
    return {name: getattr(event, name) for name in Event.__dataclass_fields__}


_ROWS: dict[str, tuple[Callable[[Tab, Path], dict[str, float]], tuple[float, ...]]] = {
    "frames": (frames, (33,)),
    "nodes": (nodes, (2,)),
    "logs": (logs, (33, 1000)),
    "size": (size, (2,)),
    "latency": (latency, (1,)),
    "opening": (opening, (3, 10)),
    "idle": (idle, (0.1, 0.1)),
    "weight": (weight, (200, 2500)),
}


def main() -> int:
    """Print one JSON object per number."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=_ROWS, default=list(_ROWS))
    missed = 0
    with a_tab() as tab, tempfile.TemporaryDirectory() as folder:
        for row in parser.parse_args().only:
            measure, goals = _ROWS[row]
            for (what, value), goal in zip(measure(tab, Path(folder)).items(), goals, strict=True):
                missed += value > goal
                print(
                    json.dumps({"row": row, "what": what, "value": round(value, 3), "met": value <= goal}), flush=True
                )
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
