"""The clock that measures silence, with times and kernel counters chosen by the test."""

from __future__ import annotations

import os
from pathlib import Path

from compose_sim.node.master.coordinator import MachineClock


class Machine:
    """A machine of two CPUs whose time the test controls."""

    def __init__(self, folder: Path) -> None:
        self.seconds, self.idle, self.folder, self.crowd = 1000.0, 0.0, folder, 1
        self._write()
        self.clock = MachineClock(lambda: self.seconds, folder)

    def passes(self, seconds: float, *, idle_cpus: float) -> None:
        """Let time pass in which the clock is read every 0.25 s."""
        for _ in range(round(seconds / 0.25)):
            self.seconds, self.idle = self.seconds + 0.25, self.idle + 0.25 * idle_cpus
            self._write()
            self.clock.advance()

    def _write(self) -> None:
        stat = f"cpu  70 0 30 {round(100 * self.idle)} 55 0 0 0 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n"
        (self.folder / "stat").write_text(stat)
        (self.folder / "loadavg").write_text(f"0.10 0.20 0.30 {self.crowd}/900 4711\n")


def test_an_idle_machine_has_been_idle_all_the_time(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.passes(6.0, idle_cpus=1.0)
    assert (machine.clock.now, machine.clock.idle_since) == (6.0, 0.0)


def test_a_busy_machine_was_busy_until_now(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.passes(6.0, idle_cpus=0.0)
    assert machine.clock.idle_since == 6.0
    machine.passes(4.0, idle_cpus=2.0)
    assert (machine.clock.now, machine.clock.idle_since) == (10.0, 6.0)


def test_the_clock_stops_while_its_process_does_not_run(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.passes(1.0, idle_cpus=1.0)
    machine.seconds += 20.0
    machine.clock.advance()
    assert machine.clock.now == 1.5


def test_the_clock_is_slow_while_nodes_wait_for_each_other_to_run(tmp_path: Path) -> None:
    """Of 200 nodes on two cores, one was silent for 30 s and then taken for dead."""
    machine = Machine(tmp_path)
    machine.crowd = 16 * (os.cpu_count() or 1)
    machine.passes(10.0, idle_cpus=0.0)
    assert machine.clock.now == 10.0
    machine.crowd *= 5
    machine.passes(10.0, idle_cpus=0.0)
    assert round(machine.clock.now, 6) == 12.0


def test_a_machine_that_does_not_say_counts_as_busy(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.clock = MachineClock(lambda: machine.seconds, tmp_path / "none")
    machine.passes(2.0, idle_cpus=2.0)
    assert machine.clock.idle_since == 2.0
