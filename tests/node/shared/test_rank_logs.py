"""The log of a rank holds the last state of a progress bar, and everything else as it was printed."""

from __future__ import annotations

import os
import resource
import selectors
from pathlib import Path

import pytest

from compose_sim.node.shared.event_log import RunClock
from compose_sim.node.shared.rank_logs import STAMP, ProgressBars, RankLogs


def test_what_does_not_fit_on_the_disk_is_still_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A limit of 4 KiB per file stands for the full disk; it is lifted before anything else is written."""
    (tmp_path / "node-0.0.log").write_bytes(b"x" * 4096)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with selectors.DefaultSelector() as selector:
        logs = RankLogs(tmp_path, "node-0", selector, echo=True)
        output = logs.open(0)
        os.write(output, b"loss 1.5\n")
        os.close(output)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            logs.drain(0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        logs.finish(1.0)
    printed = capfd.readouterr()

    assert "loss 1.5" in printed.out
    assert "node-0.0.log (File too large)" in printed.err
    assert (tmp_path / "node-0.0.log").stat().st_size == 4096


@pytest.mark.parametrize(
    ("chunks", "copied"),
    [
        ((b"one\n", b"tw", b"o\r\n", b"three"), b"one\ntwo\r\nthree"),
        ((b"one\r", b"\ntwo"), b"one\r\ntwo"),
        ((b"\r 0%", b"\r 1", b"0%\r100%", b"\nnext\n"), b"100%\nnext\n"),
        ((b"begun", b"\r 1%", b"\n"), b"begun\r 1%\n"),  # terminals and composesim show the last state of it
        ((b"a", b"b\nc\r", b"d\n"), b"ab\nd\n"),
        ((b"\r 5%\r    \rdone\n",), b"done\n"),  # a bar that clears itself
        ((b"\r 5%",), b" 5%"),  # the rank was killed
        # tqdm with position=1: the bar below is drawn between a newline and a step up
        ((b"outer 1\n\rinner 1\x1b[A\n\rinner 2\x1b[A", b"\router 2\n"), b"outer 1\nouter 2\n"),
    ],
)
def test_of_a_line_that_is_overwritten_the_last_state_is_copied(chunks: tuple[bytes, ...], copied: bytes) -> None:
    bars = ProgressBars()

    assert b"".join(bars.take(chunk, 0.0) for chunk in chunks) + bars.finish() == copied


def test_a_long_bar_shows_a_state_less_and_less_often() -> None:
    bars = ProgressBars()
    copied = b"".join(bars.take(b"\r%d s" % second, float(second)) for second in range(121))

    assert copied == b"1 s\n3 s\n7 s\n15 s\n31 s\n61 s\n91 s\n"
    assert bars.take(b"\n\r0 s", 121.0) == b"120 s\n"
    assert bars.take(b"\r1 s", 122.0) == b"1 s\n"
    assert bars.take(b"\nend\n", 123.0) == b"end\n"  # the line of the bar has been copied


def test_a_stamp_tells_when_output_was_read_and_where_it_is_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "node-0.0.log").write_bytes(b"earlier\n")
    clock = RunClock.begin()
    with selectors.DefaultSelector() as selector:
        logs = RankLogs(tmp_path, "node-0", selector, echo=False)
        output, before = logs.open(0), clock.now()
        os.write(output, b"one\n")
        logs.drain(0)
        os.close(output)
        logs.finish(1.0)
    ((offset, t),) = STAMP.iter_unpack((tmp_path / "node-0.0.times").read_bytes())

    assert offset == len(b"earlier\n")
    assert before - 1 <= t <= clock.now() + 1
