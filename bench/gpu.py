"""
Compare nodes that share one GPU with bare processes that share it. Writes gpu.md and gpu.json.

    python3 -m bench.gpu [--rounds N] [--results DIR] [--only containers,bare,…]

It needs a machine with an NVIDIA GPU and a Docker Engine.

Every figure comes from templates/bench/gpu.py on rank 0: medians of steps and of all-reduces. Results are written after each run,
so that an interrupted benchmark keeps them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench import machine
from bench.gpu_table import MAX_MS, as_markdown
from compose_sim.engine.host.gpus import inspect_gpus

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "templates" / "bench" / "gpu.py"
PATIENCE_S = 150.0
ROUNDS = 5  # of contestants in turn: on the same machine, single runs differ by 10 to 30 %
MAX_ROUNDS = 3  # of those that take half a minute or more


class FailedError(Exception):
    """A contestant failed; the text holds the last lines of output."""


class Contest:
    """One GPU, one folder to run in, and the measurements so far."""

    def __init__(self, folder: Path, results: Path) -> None:
        """Query the machine."""
        self.folder, self.results = folder, results
        inventory = inspect_gpus()
        self.gpu, self.control = inventory.gpus[0], inventory.toolkit.mps_control
        self.told: dict[str, Any] = {
            "schema_version": 1,
            "date": time.strftime("%Y-%m-%d"),
            "commit": machine.commit(),
            "machine": {"gpu": self.gpu.model, "driver": inventory.driver, **machine.describe()},
            "runs": {},
        }

    def keep(self, name: str, measure: Callable[[], dict[str, Any]]) -> None:
        """Measure, and write all results so far."""
        begun = time.monotonic()
        try:
            figures = measure()
        except (FailedError, OSError, ValueError, LookupError, StopIteration, subprocess.SubprocessError) as error:
            figures = {"problem": f"{error}"[:300]}
        figures["seconds"] = round(time.monotonic() - begun, 1)
        self.told["runs"].setdefault(name, []).append(figures)
        print(f"{name}: {json.dumps(figures)}", file=sys.stderr, flush=True)
        self.results.mkdir(parents=True, exist_ok=True)
        (self.results / "gpu.json").write_text(json.dumps(self.told, indent=1, ensure_ascii=False) + "\n")
        (self.results / "gpu.md").write_text(as_markdown(self.told))

    def containers(self, nodes: int, *, share: str = "mps") -> dict[str, Any]:
        """Measure nodes as composesim starts them."""
        report = self._up("--nodes", str(nodes), "--gpus", self.gpu.uuid, "--share", share, str(SCRIPT))
        return {**_figures(report["metrics"]), "timings": report["timings"]}

    def seconds_of_up(self, *gpus: str) -> dict[str, Any]:
        """Measure how long `up` takes with eight nodes and a script that does nothing."""
        script = self.folder / "idle.py"
        script.write_text("pass\n")
        begun = time.monotonic()
        self._up("--nodes", "8", *gpus, str(script))
        return {"up_s": round(time.monotonic() - begun, 2)}

    def _up(self, *words: str) -> dict[str, Any]:
        command = [
            sys.executable,
            "-m",
            "compose_sim",
            "up",
            "--json",
            "--engine",
            "docker",
            "--timeout",
            f"{PATIENCE_S:g}s",
        ]
        try:
            done = subprocess.run(
                [*command, *words], cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE_S + 30
            )
        except subprocess.TimeoutExpired:
            raise FailedError(f"did not end within {PATIENCE_S + 30:g} s") from None
        try:
            report: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            raise FailedError(done.stderr.strip()[-300:]) from None
        if done.returncode:
            raise FailedError(
                str((report.get("cause") or report.get("error") or {}).get("message") or report.get("verdict"))
            )
        return report

    def bare(self, count: int) -> dict[str, Any]:
        """Measure the same script as plain processes on the loopback interface, with a separate MPS daemon and without composesim."""
        shared = self.folder / "bare"
        shutil.rmtree(shared, ignore_errors=True)
        pipes = shared / "mps"
        pipes.mkdir(parents=True)
        common = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": self.gpu.uuid,
            "CUDA_MPS_PIPE_DIRECTORY": str(pipes),
            "CUDA_MPS_LOG_DIRECTORY": str(pipes),
            "COMPOSESIM_GPUS": self.gpu.uuid,  # the script compares this with what it sees
            "COMPOSESIM_DIR": str(ROOT / "compose_sim"),
            "COMPOSESIM_SHARED": str(shared),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29555",
            "WORLD_SIZE": str(count),
            "LOCAL_RANK": "0",
            "NCCL_SOCKET_IFNAME": "=lo",
            "NCCL_IB_DISABLE": "1",
            "NCCL_NVLS_ENABLE": "0",
            "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // count)),
            "PATH": f"{Path(self.control).parent}:{os.environ['PATH']}",
        }
        daemon = subprocess.Popen([self.control, "-f"], env=common, stdin=subprocess.DEVNULL)
        try:
            return _figures(self._run_together(common, count, shared))
        finally:
            subprocess.run([self.control], input="quit -t 2\n", env=common, text=True, check=False, timeout=30)
            try:
                daemon.wait(30)
            finally:
                daemon.kill()

    def _run_together(self, common: dict[str, str], count: int, shared: Path) -> dict[str, Any]:
        processes = []
        for rank in range(count):
            own = {"RANK": str(rank), "NCCL_HOSTID": f"bare-{rank}", "COMPOSESIM_NODE": f"process-{rank}"}
            with (shared / f"{rank}.log").open("wb") as log:
                processes.append(
                    subprocess.Popen([sys.executable, "-u", str(SCRIPT)], env={**common, **own}, stdout=log, stderr=log)
                )
        deadline = time.monotonic() + PATIENCE_S
        try:
            codes = [process.wait(max(0.1, deadline - time.monotonic())) for process in processes]
        except subprocess.TimeoutExpired:
            raise FailedError(f"did not end within {PATIENCE_S:g} s") from None
        finally:
            for process in processes:
                process.kill()
                process.wait()
        lines = (shared / "0.log").read_text(errors="replace").splitlines()
        if any(codes):
            raise FailedError(" | ".join(lines[-3:])[-300:])
        metrics: dict[str, Any] = json.loads(next(line for line in lines if line.startswith('{"step"')))
        return metrics


def _figures(metrics: dict[str, Any]) -> dict[str, Any]:
    names = ("step_ms", "large_step_ms", "latency_us", "all_reduce_ms", "bus_gigabytes_per_s")
    mps = [rank["mps"] for rank in metrics["ranks"]]
    return {**{name: round(metrics[name], 3) for name in names}, "ranks": len(mps), "through_mps": sum(map(bool, mps))}


def main() -> int:
    """Measure what was requested, one after another."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description="Measure nodes that share one GPU.")
    parser.add_argument(
        "--results", type=Path, default=ROOT / "bench", metavar="DIR", help="folder for gpu.md and gpu.json"
    )
    parser.add_argument(
        "--only", default="", metavar="WORD,…", help="run only the runs whose names contain one of these"
    )
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="rounds of the contestants in turn (default: %(default)s)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="composesim-bench-") as folder:
        contest = Contest(Path(folder), options.results)
        shared = ("--gpus", contest.gpu.uuid, "--share", "mps")
        side_by_side: list[tuple[str, Callable[[], dict[str, Any]]]] = [
            ("8 containers, MPS", lambda: contest.containers(8)),
            ("8 bare processes, MPS", lambda: contest.bare(8)),
        ]
        many: list[tuple[str, Callable[[], dict[str, Any]]]] = [
            (f"{count} containers, MPS", partial(contest.containers, count)) for count in MAX_MS
        ]
        added: list[tuple[str, Callable[[], dict[str, Any]]]] = [
            ("up of 8 nodes that share the GPU", lambda: contest.seconds_of_up(*shared)),
            ("up of 8 nodes without a GPU", lambda: contest.seconds_of_up("--gpus", "none")),
        ]
        runs = side_by_side * options.rounds + many * min(options.rounds, MAX_ROUNDS) + added * min(options.rounds, 2)
        runs.append(("8 containers, by turns", lambda: contest.containers(8, share="timeslice")))
        wanted = [word for word in options.only.split(",") if word]
        for name, measure in runs:
            if not wanted or any(word in name for word in wanted):
                contest.keep(name, measure)
    print((options.results / "gpu.md").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
