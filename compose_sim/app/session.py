"""Run the one sequence that all commands share: request, inspect, plan, run, report."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from threading import Thread
from typing import TYPE_CHECKING, Any

from compose_sim.app.request import Request, danger_of, new_name
from compose_sim.core.host.host import Host
from compose_sim.core.plan.model import CONTAINER_FOLDER, NODE_HASHES, Mount, Plan
from compose_sim.core.plan.mounts import covers_of
from compose_sim.core.text import format_count
from compose_sim.engine.run_folder.folder import location_choice, runs_folder
from compose_sim.errors import (
    ComposesimError,
    EngineError,
    EngineSilentError,
    OutOfTimeError,
    SpecError,
    resource_error,
    resource_errors,
)
from compose_sim.version import __version__

if TYPE_CHECKING:  # `plan` runs nothing, and imports only what it needs
    from compose_sim.app.listener import Listener
    from compose_sim.app.node_removal import NodeRemoval
    from compose_sim.core.report.report import Cause, Hint, Report
    from compose_sim.core.scenarios import Player
    from compose_sim.core.state.state import ClusterState
    from compose_sim.engine.lifetime.supervisor import Supervisor
    from compose_sim.engine.protocol import Engine
    from compose_sim.engine.run_folder.folder import RunFolder

_LONG_OUTPUT_S = 2.0
_HINTS_S = 5.0  # of CPU
_SUBNET_TAKEN = ("Pool overlaps", "is already used on the host")  # what Docker and Podman answer


class Session:
    """One run of a request: planned when the session is created, and executed by `run`."""

    @resource_errors()
    def __init__(
        self,
        request: Request,
        *,
        name: str | None = None,
        folder: Path | None = None,
        portable: bool = False,
        engine: Engine | None = None,
    ) -> None:
        """
        Inspect this machine and plan the run. Raises SpecError or EnvironmentMissingError if it cannot be planned.

        The run is named `name`, else as in the spec, else after the program. A `portable` plan is for another machine (`render`).
        `engine` is that of another session; else the session makes its own.
        """
        self.request = request
        self.name = name or new_name(request.spec)
        self._folder = folder or runs_folder(request.folder) / self.name
        self.marks: dict[str, float] = {}  # phase of `core/state/progress.py` -> when it ended, on the monotonic clock
        self.mark("Python and imports")
        self.was_interrupted = False  # whether Ctrl-C or SIGTERM ended the run
        self._portable = portable
        self._engine = engine
        self._environment: dict[str, str] = {}
        self._mounts: tuple[Mount, ...] = ()
        self._supervisor: Supervisor | None = None
        self.plan: Plan
        self.host: Host
        self.report: Report  # of the run, once that is over
        self._make_plan()
        self.mark("inspection and plan")

    def mark(self, phase: str) -> None:
        """Note that a phase has ended."""
        self.marks[phase] = time.monotonic()

    @cached_property
    def engine(self) -> Engine:
        """The engine that the plan names."""
        from compose_sim.engine.registry import make_engine

        return self._engine or make_engine(self.plan.engine)

    @cached_property
    def folder(self) -> RunFolder:
        """The folder of the run; planning does not create it."""
        from compose_sim.engine.run_folder.folder import RunFolder

        return RunFolder(self._folder)

    def add_environment(self, **variables: str) -> None:
        """Set variables on all nodes that the user cannot set: those that composesim's own code in the nodes reads."""
        self._environment |= variables
        self.plan = replace(self.plan, environment={**self.plan.environment, **variables})

    def add_mount(self, source: Path, name: str, *, read_only: bool = True) -> str:
        """Let nodes read a folder of this machine, and return its path there: in containers, `name` may be absolute."""
        if self.plan.engine != "docker":
            return str(source)
        mount = Mount(source=str(source), target=str(PurePosixPath(CONTAINER_FOLDER, name)), read_only=read_only)
        self._mounts += (mount,)
        self.plan = self.plan.with_mounts(mount)
        return mount.target

    def run(self, listener: Listener) -> Report:
        """
        Run the plan to the end and return the report; only the run's folder remains, unless nodes are to be kept.

        Raises ComposesimError if the run could not be started.
        """
        with self.running(listener):
            return self.report

    @contextmanager
    def running(self, listener: Listener, *, player: Player | None = None) -> Iterator[None]:
        """
        Run the plan to the end, and enter the context once the nodes are gone. It may extend `report`, which is written at its end.

        `player` injects faults during the run. Raises ComposesimError if the run could not be started.
        """
        from compose_sim.engine.host.run_names import claimed_name
        from compose_sim.engine.lifetime.orphans import remove_crashed
        from compose_sim.engine.run_folder.finished import discard_unstarted, retire

        with resource_errors():
            if self.plan.links or self.plan.is_routed:
                from compose_sim.engine.docker.network import Networks

                Networks(self.plan, self.engine).check(self.plan.links)
            for crashed in remove_crashed(self.request.folder):
                listener.progress(
                    f"removed what the {crashed.how_it_ended} run '{crashed.run}' had left on {crashed.engine.name}"
                )
            self.folder.claim()
            try:
                with claimed_name(self.plan.engine, self.name):
                    self._seed_hashes()
                    self._lay_out()
                    self.mark("run folder")
                    self.report = self._run_or_interrupt(listener, player)
                yield
                if unwritten := self._write_report(self.report):
                    listener.progress(f"report.json was not written: {unwritten.message}. Try: {unwritten.hint}")
                spec = self.request.spec
                retire(self.request.folder, most_runs=spec.keep_runs, most_bytes=spec.keep_runs_size)
            except (ComposesimError, KeyboardInterrupt):
                discard_unstarted(self.folder)
                raise
            finally:
                self.folder.release()
                if self._supervisor:
                    self._supervisor.hand_over()  # after the release: it claims the folder

    def _make_plan(self) -> None:
        plan, self.host = self.request.plan(run=self.name, run_folder=self._folder, portable=self._portable)
        location = None if self._portable else location_choice(self.request.folder)
        choices = (*plan.choices, location) if location else plan.choices
        environment = {**plan.environment, **self._environment}
        plan = replace(plan, environment=environment, choices=choices).with_mounts(*self._mounts)
        self.plan = self._with_covers(plan)

    def _with_covers(self, plan: Plan) -> Plan:
        if plan.engine != "docker":
            return plan
        real = [replace(mount, source=os.path.realpath(mount.source)) for mount in plan.mounts]
        return replace(
            plan, mounts=(*plan.mounts, *(each for path in self.request.hidden for each in covers_of(real, path)))
        )

    def _lay_out(self) -> None:
        if self.engine.statuses(self.name):
            raise SpecError(
                f"a run named '{self.name}' already has nodes",
                hint=f"choose another --name, or remove them: composesim down --run {self.name}",
            )
        self.folder.clear(*self.plan.owner_ids, token=self.plan.has_token, containers=self.plan.writers)
        self.folder.write_plan(self.plan)
        if self.request.command:
            self.folder.write_command(self.request.command)

    def _run_or_interrupt(self, listener: Listener, player: Player | None) -> Report:
        """Return the report, also if the user interrupts the run before its loop begins, which takes interrupts itself."""
        from compose_sim.engine.lifetime.interrupts import interrupts_raise

        try:
            with interrupts_raise():
                return self._run(listener, player)
        except KeyboardInterrupt:
            self.was_interrupted = True
            self.folder.append_event("stopping", reason="interrupted")
            from compose_sim.engine.run_folder.record import read_state

            return self._report(read_state(self.folder)[1])

    def _run(self, listener: Listener, player: Player | None) -> Report:
        from compose_sim.app.node_removal import NodeRemoval
        from compose_sim.engine.lifetime.supervisor import start_supervisor
        from compose_sim.engine.run_folder.folder import last_event
        from compose_sim.engine.run_folder.node_files import OWN_EVENTS

        self._supervisor = start_supervisor(self.engine.name, self.name, self.folder.path)
        removal = NodeRemoval(self.engine, self.plan, log=self.folder.path / "supervisor.log")
        try:
            listener.waiting(f"image {self.plan.image}" if self.plan.image not in ("", "host") else "the engine")
            image = self.engine.prepare(self.plan, listener.progress)
            self.mark("supervisor and image")
            listener.waiting(f"the engine to create {format_count(len(self.plan.nodes), 'node')}")
            self._start(image)
            self.mark("engine creates nodes")
            from compose_sim.app.run import RunLoop
            from compose_sim.core.verdict.verdict import judge

            loop = RunLoop(self.plan, self.engine, self.folder, listener, player)
            state = loop.follow()
            self.was_interrupted = loop.was_interrupted
            verdict = judge(state).word
            if self.request.spec.keep == "failed" and verdict not in ("passed", "interrupted"):
                self._keep(removal)
            if verdict == "passed":  # else the report may need what the engine has of their output
                removal.begin()
            report = self._report(state)
            if loop.output_s >= _LONG_OUTPUT_S:
                report = replace(report, timings=replace(report.timings, output_s=round(loop.output_s, 3)))
            self._write_report(report)  # before the clean-up, which may be interrupted
            self.mark("checks and report")
        except EngineSilentError:
            raise
        except ComposesimError as error:
            if last_event(self.folder.path, "", "stopping", file=OWN_EVENTS).get("reason") == "interrupted":
                raise KeyboardInterrupt from error  # by `down`, while nodes were being started
            if problem := self.engine.problem():
                raise EngineError(problem, evidence=error.message) from error
            raise
        finally:
            if removal.finish(listener):
                self._supervisor.release()
            self.mark("nodes removed")
        return report

    def _keep(self, removal: NodeRemoval) -> None:
        """Keep the nodes of a run that has failed."""
        removal.keep = True
        self.plan = replace(self.plan, keep=True)
        self.folder.write_plan(self.plan)

    def _start(self, image: str) -> None:
        """Start the nodes; plan again if another run has taken the subnet or a published port since the plan was made."""
        from compose_sim.engine.host.capacity import port_in_use, port_in_use_error
        from compose_sim.engine.run_folder.node_files import OWN_EVENTS

        facts = self._facts(image)
        for attempts_left in (2, 1, 0):
            if self.engine.name == "docker":
                from compose_sim.app.documents import write_documents

                write_documents(self.plan, self.folder.path, image=image, dotenv=self.request.dotenv)
                self.mark("compose file")
            self.folder.append_event("started", {"version": __version__, **facts})
            Thread(target=_prepare, daemon=True).start()
            try:
                self.engine.start(self.plan, self.folder)
            except ComposesimError as error:
                port = port_in_use(error.evidence)
                if not (attempts_left and (port or any(text in error.evidence for text in _SUBNET_TAKEN))):
                    if isinstance(error, SpecError):  # refused as a whole: there is no run to report on
                        self.folder.files.remove(OWN_EVENTS)
                    raise
                self.engine.remove(self.name)
                self._make_plan()
                if port in (each.host_port for each in self.plan.published):
                    raise port_in_use_error(self.plan, port) from error
                self.folder.write_plan(self.plan)
            else:
                break

    def _write_report(self, report: Report) -> ComposesimError | None:
        """Write the report; return why that is impossible, which must not cost the user the report that is printed."""
        try:
            self.folder.write_report(report)
        except SpecError as error:
            return error
        except OSError as error:  # such as a folder, which a script of the local engine can put there
            return resource_error(error) or SpecError(str(error), hint=f"ls -la {self.folder.path}")
        return None

    def _facts(self, image: str) -> dict[str, Any]:
        """Return the facts about this machine and the engine for the report."""
        return {
            "host": self.host.name,
            "cpus": self.host.cpus,
            "memory_bytes": self.host.memory_bytes,
            "engine": self.engine.describe(),
            "driver": self.host.gpus.driver or None,
            "image_digest": self.engine.image_digest(image),
        }

    def _report(self, state: ClusterState) -> Report:
        """Return the report. If a node failed before it started a rank, its output is evidence; the engine may have that too."""
        from compose_sim.core.verdict.verdict import judge
        from compose_sim.engine.run_folder.judging_time import judging_time
        from compose_sim.engine.run_folder.record import build_report, last_output

        logs = last_output(self.folder, state) if judge(state).word == "failed" else {}
        output = {node: text or self.engine.output(self.name, node) for node, text in logs.items()}
        self.folder.append_event("verdict", verdict=judge(state, output).word, last_t=state.last_t)
        report = build_report(self.folder, self.plan, state, output=output)
        if report.needs_hints:
            with suppress(OutOfTimeError), judging_time(_HINTS_S):  # a script may be as large as it likes
                report = replace(report, hints=self.hints())
        return replace(report, cause=self._with_hint(report.cause)) if report.cause else report

    def _with_hint(self, cause: Cause) -> Cause:
        """Return the failure with what lets nodes see a file, if a rank did not find one that this machine has."""
        from compose_sim.core.report import missing
        from compose_sim.engine.host.answers import home_folder

        named, project = missing.missing_file(cause.message), self.request.folder
        if not named:
            return cause
        path, script = missing.below(self.plan.working_directory, named), self.request.spec.script or ""
        source, beside = Path(missing.on_this_machine(path, home_folder(""))), (project / script).parent / named
        hint = ""
        if beside.exists() and not Path(named).is_absolute() and not (project / named).exists():
            hint = missing.folder_hint(named, script, self.plan)
        elif self.plan.engine == "docker" and not source.is_relative_to(project) and source.exists():
            is_allowed = not danger_of(source, project, allowed=())  # the script chose the path
            hint = missing.mount_hint(path, str(source), self.plan) if is_allowed else ""
        return replace(cause, traceback=f"{cause.traceback or ''}\n{hint}".lstrip()) if hint else cause

    @cached_property
    def sources(self) -> dict[str, str]:
        """The text of the script, and of the user's modules that it imports, by path."""
        from compose_sim.engine.host.script_sources import read_sources

        inherited = os.environ if self.plan.engine == "local" else {}  # only processes on this machine inherit it
        search_path = {**inherited, **self.plan.environment}.get("PYTHONPATH", "").split(os.pathsep)
        return read_sources(self.request.folder, str(self.request.spec.script or ""), search_path)

    def _seed_hashes(self) -> None:
        """Give each node of the local engine a hash seed of its own, as on a cluster, if the script may depend on one."""
        from compose_sim.core.checks.source import uses_hashes

        plan = self.plan
        if plan.engine == "local" and plan.launcher == "warm" and len(plan.nodes) > 1 and uses_hashes(self.sources):
            self.add_environment(**{NODE_HASHES: "1"})

    def hints(self) -> tuple[Hint, ...]:
        """Return the lines of these files that are often wrong."""
        from compose_sim.core.checks.source import find_hints

        return tuple(find_hints(self.sources))


def _prepare() -> None:
    """Import what the rest of the run needs, while this process waits for nodes to start."""
    from compose_sim.app import run  # noqa: F401 - imported ahead of its use
    from compose_sim.engine.run_folder.record import prepare_report

    prepare_report()
