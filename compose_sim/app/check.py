"""How does a script become a list of checks? A recorded run at world size N, its steps once more on one rank, then the judges."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from compose_sim.app.run import Listener, run_cluster
from compose_sim.core.checks import FAILED, Case, run_checks
from compose_sim.core.checks.evidence.replay_diff import needs_alone, reason_against
from compose_sim.core.events.events import Event
from compose_sim.core.events.observations import Observed
from compose_sim.core.host.host import Host
from compose_sim.core.plan.model import Plan
from compose_sim.core.state.state import ClusterState
from compose_sim.core.verdict.verdict import EXIT_CODES
from compose_sim.engine.protocol import Engine
from compose_sim.engine.run_folder.check_inputs import read_case, read_observed
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.engine.run_folder.record import delete
from compose_sim.errors import ComposesimError

_NEED_A_REPLAY = ("loss-scale", "matches-single")
_RECORD = "observations/record"  # in the run's folder: where nodes may write, and what a new run of this name clears
_REPLAYS_TAKE_S = 120.0  # beyond a few times what the run itself took


class Planner(Protocol):
    """Makes a plan of the same request for this machine as it is now, with `changes` to fields of its ClusterSpec."""

    def __call__(
        self, *, run: str, run_folder: Path, changes: Mapping[str, Any] | None = None
    ) -> tuple[Plan, Host]: ...


def check_cluster(
    plan: Plan,
    engine: Engine,
    folder: RunFolder,
    host: Host,
    listener: Listener,
    *,
    make_plan: Planner,
    only: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
    steps: int | None = None,
    tolerance: float | None = None,
    dotenv: str = "",
    replan: Callable[[], Plan] | None = None,
) -> dict[str, Any]:
    """
    Run a plan, replay its first steps at world size 1 where a chosen check asks for it, and return the report with all chosen checks.

    `plan` and `replan` are as for `run_cluster`; `make_plan` (Request.plan) plans the second run.
    `steps` ends the script after so many optimizer steps; a `tolerance` that is left out is what the numbers' precision allows.
    """
    replays = any((not only or name in only) and name not in skip for name in _NEED_A_REPLAY)
    added = _recording(plan, steps=steps) if replays or steps else {}
    report = run_cluster(
        _told(plan, added),
        engine,
        folder,
        host,
        listener,
        dotenv=dotenv,
        replan=(lambda: _told(replan(), added)) if replan else None,
    )
    case = read_case(folder.path, verdict=report["verdict"], cause=report["cause"])
    case = case if tolerance is None else replace(case, tolerance=tolerance)
    interrupted = False
    try:
        if replays:
            replayer = _Replayer(engine, folder, listener, make_plan, dotenv, report)
            case = replayer.complete(case)
    except KeyboardInterrupt:  # what the first run showed is worth saying all the same
        interrupted, case = True, replace(case, why_no_single="it was interrupted at world size 1")
    finally:
        shutil.rmtree(folder.path / _RECORD, ignore_errors=True)
    results = run_checks(case, only=only, skip=skip)
    report = _concluded({**report, "checks": [result.to_dict() for result in results]})
    if interrupted:
        report |= {"verdict": "interrupted", "exit_code": EXIT_CODES["interrupted"]}
    folder.write_report(report)
    return report


def _recording(plan: Plan, *, steps: int | None) -> dict[str, str]:
    limit = {} if steps is None else {"COMPOSESIM_CHECK_STEPS": str(steps)}
    return {"COMPOSESIM_CHECK": "record", "COMPOSESIM_RECORD": f"{plan.folder}/{_RECORD}", **limit}


def _told(plan: Plan, environment: Mapping[str, str]) -> Plan:
    """The plan with variables that nobody but us may set."""
    return replace(plan, environment={**plan.environment, **environment})


class _Replayer:
    """Runs the script at world size 1, once with all ranks' batches, and where that differs once with those of each rank."""

    def __init__(
        self,
        engine: Engine,
        folder: RunFolder,
        listener: Listener,
        make_plan: Planner,
        dotenv: str,
        report: Mapping[str, Any],
    ) -> None:
        self._engine, self._folder, self._listener = engine, folder, listener
        self._make_plan, self._dotenv, self._report = make_plan, dotenv, report

    def complete(self, case: Case) -> Case:
        """The case with what the replays observed, or with the reason why there are none."""
        why = self._why_not(case)
        if why:
            return replace(case, why_no_single=why)
        self._listener.progress("Repeating the first steps at world size 1.")
        single, why = self._replay("single", {})
        case = replace(case, single=single, why_no_single=why)
        alone: dict[int, Observed] = {}
        ranks = sorted(case.observed.ranks) if needs_alone(case) else []
        for rank in ranks:
            self._listener.progress(f"World size 1 differs: repeating them with the batches of rank {rank} alone.")
            observed, why = self._replay(f"alone-{rank}", {"COMPOSESIM_RECORD_RANK": str(rank)})
            if why or not observed:
                break
            alone[rank] = observed
        return replace(case, alone=alone)

    def _why_not(self, case: Case) -> str:
        kind = (case.cause or {}).get("kind")
        if case.verdict != "passed" and not (case.verdict == "failed" and kind == "teardown"):
            return f"the run {case.verdict}" if case.verdict in ("failed", "hung") else f"the run ended: {case.verdict}"
        return reason_against(case.observed)

    def _replay(self, name: str, more: Mapping[str, str]) -> tuple[Observed | None, str]:
        """What was observed at world size 1, and why it is nothing where it is nothing."""
        folder = RunFolder(self._folder.path.with_name(f"{self._folder.name}-{name}"))
        # The first run's folder is below the project, which nodes see under its own name on both engines.
        told = {"COMPOSESIM_CHECK": "replay", "COMPOSESIM_RECORD": str(self._folder.path / _RECORD), **more}
        try:
            plan, host = self._make_plan(
                run=folder.name,
                run_folder=folder.path,
                changes={"nodes": 1, "nproc_per_node": 1, "keep": False, "subnet": None, "timeout": self._patience()},
            )
            report = run_cluster(_told(plan, told), self._engine, folder, host, self._quiet(), dotenv=self._dotenv)
            observed = read_observed(folder.path)
        except ComposesimError as error:
            return None, f"there was no run at world size 1: {error.message}"
        finally:
            folder.release()
            if folder.path.is_dir():
                delete(folder)
        if report["verdict"] == "interrupted":
            raise KeyboardInterrupt
        if any(observed.of("replay", "replay-end")):
            return observed, ""
        message = (report["cause"] or {}).get("message") or ""
        words = f"at world size 1 the script {report['verdict']}" if message else ""
        return observed, f"{words}: {message.splitlines()[0]}" if words else ""

    def _patience(self) -> float:
        return _REPLAYS_TAKE_S + 4 * float(self._report["timings"]["total_s"] or 0.0)

    def _quiet(self) -> Listener:
        return _Quiet(self._listener)


class _Quiet:
    """What a second run prints is what the first one printed: nobody need read it twice."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def progress(self, text: str) -> None:
        """As it is."""
        self._listener.progress(text)

    def show(self, events: list[Event], state: ClusterState) -> None:
        """Nothing."""

    def close(self) -> None:
        """The first run's listener goes on."""


def _concluded(report: dict[str, Any]) -> dict[str, Any]:
    """The verdict of run and checks together: a check that failed is a cause, a crash after the training is a warning."""
    verdict, cause = report["verdict"], report["cause"]
    if verdict == "failed" and cause and cause["kind"] == "teardown":
        verdict, cause = "passed", None
    first = next((result for result in report["checks"] if result["status"] == FAILED), None)
    if verdict == "passed" and first:
        message = f"{first['id']}: {first['detail']}"
        verdict, cause = "failed", {"node": None, "rank": None, "kind": "check", "message": message, "traceback": None}
    return {**report, "verdict": verdict, "exit_code": EXIT_CODES[verdict], "cause": cause}
