"""On a terminal, the traceback that ends a rank is one line in the output: the report shows it."""

from __future__ import annotations

from compose_sim.cli.views.tracebacks import UncaughtTracebacks
from compose_sim.core.events.events import Event
from compose_sim.core.state.fold import fold_all
from compose_sim.core.state.state import ClusterState
from tests.builders import a_plan, an_event

TRACEBACK = """Traceback (most recent call last):
  File "/work/train.py", line 10, in <module>
    loss.backward()
    ^^^^^^^^^^^^^^^"""


def state_of(message: str, *, rank: int = 1) -> ClusterState:
    """Return the state in which one rank has raised a ValueError, and the others run."""
    told = {"type": "ValueError", "message": message, "traceback": f"{TRACEBACK}\nValueError: {message}"}
    events = [an_event("started", 0.0), an_event("rank-started", 1.0, rank=0), an_event("rank-started", 1.0, rank=1)]
    return fold_all(a_plan(nodes=2), [*events, an_event("exception", 2.0, rank=rank, **told)])


def lines_of(text: str, *, rank: int = 1) -> list[Event]:
    return [Event(t=2.0, kind="log", node=f"node-{rank}", rank=rank, data={"line": line}) for line in text.split("\n")]


def printed(text: str, state: ClusterState, *, rank: int = 1) -> list[str]:
    return [event.data["line"] for event in UncaughtTracebacks().without(lines_of(text, rank=rank), state)]


def test_the_traceback_of_a_rank_that_ends_is_one_line_with_its_place() -> None:
    text = f"epoch 1\n{TRACEBACK}\nValueError: boom\nlast words"
    assert printed(text, state_of("boom")) == ["epoch 1", "ValueError: boom (train.py, line 10)", "last words"]


def test_the_prefix_of_torch_and_blank_lines_of_a_chain_do_not_matter() -> None:
    chained = f"{TRACEBACK}\nKeyError: 3\n\nDuring handling of the above exception, another exception occurred:\n"
    text = "\n".join(f"[rank1]: {line}" for line in f"{chained}\n{TRACEBACK}\nValueError: boom".split("\n"))
    shown = [line.removeprefix("[rank1]: ") for line in printed(text, state_of("boom"))]
    assert [line for line in shown if "Error" in line] == ["KeyError: 3", "ValueError: boom (train.py, line 10)"]
    assert not any("File" in line for line in shown)


def test_a_traceback_that_a_rank_prints_and_goes_on_is_its_own_output() -> None:
    text = f"{TRACEBACK}\nValueError: caught"
    assert printed(text, state_of("boom", rank=0)) == text.split("\n")


def test_the_broken_connection_of_another_rank_is_not_quoted() -> None:
    text = f"{TRACEBACK}\nRuntimeError: [/gloo/pair.cc:547] Connection closed by peer [10.0.0.2]:43"
    assert printed(text, state_of("Connection closed by peer")) == ["RuntimeError: another rank has gone"]


def test_a_traceback_may_arrive_in_parts() -> None:
    folding, state = UncaughtTracebacks(), state_of("boom")
    first, second = lines_of(TRACEBACK), lines_of("ValueError: boom")
    assert [*folding.without(first, state)] == []
    assert [event.data["line"] for event in folding.without(second, state)] == ["ValueError: boom (train.py, line 10)"]
