"""Run a script whole, run it again and interrupt it, start it again over the same files, and compare."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from compose_sim.app.check import concluded, inconclusive
from compose_sim.app.listener import Listener, ProgressListener
from compose_sim.app.request import Request
from compose_sim.app.session import Session
from compose_sim.app.worlds import World, make_world
from compose_sim.core.checks import where
from compose_sim.core.checks.source import uses_hashes
from compose_sim.core.events.observations import Observed
from compose_sim.core.plan.model import CONTAINER_FOLDER, NODE_HASHES
from compose_sim.core.plan.mounts import hides_system, is_private
from compose_sim.core.report.report import CheckResult, Report
from compose_sim.core.text import format_count
from compose_sim.engine.protocol import Engine
from compose_sim.engine.registry import shared
from compose_sim.engine.run_folder.finished import delete
from compose_sim.engine.run_folder.record import read_observed
from compose_sim.engine.run_folder.safe_files import SafeFolder
from compose_sim.errors import SpecError
from compose_sim.plugins.resume.core.checkpoints import (
    SUFFIXES,
    Checkpoint,
    Interruption,
    choose_interruption,
    choose_torn,
    find_checkpoints,
    least_size,
)
from compose_sim.plugins.resume.core.evidence import ID, Ending, ThreeRuns, was_interrupted
from compose_sim.plugins.resume.core.judge import judge
from compose_sim.plugins.resume.core.options import SETTINGS
from compose_sim.plugins.resume.core.script_options import (
    ScriptOption,
    command_with,
    resuming_option,
    saving_interval,
)
from compose_sim.plugins.resume.core.trajectory import epochs_of, read_run

_GRACE_S = 10.0
_WORLDS = "resume"  # in the hidden folder of the project
_REFUSAL = "composesim check --resume"  # what a rank says when it ends so as to change no file of the user's
_RESUMED = "resumed"  # what the third run is


def check(session: Session, listener: Listener) -> Report:
    """Judge whether the script resumes, and return the report of the whole run with the result."""
    return ResumedRun(session, listener).run()


class ResumedRun:
    """The three runs of `check --resume`: whole, interrupted, and started again."""

    def __init__(self, session: Session, listener: Listener) -> None:
        """Run nothing yet."""
        self._session, self._listener = session, listener
        self._options: Any = session.request.spec.check
        self._project = session.request.folder
        self._folder = session.folder.path.parents[1] / _WORLDS / session.name
        self._arguments = self._resume_arguments()
        self._engine: Engine | None = None

    def run(self) -> Report:
        """Run, interrupt, start again and judge; the copies of the project are deleted at the end."""
        session = self._session
        _check_place(session.request)
        replaced = [_checked_folder(self._project, each) for each in self._options.checkpoint_folder]
        try:
            one, other = (
                make_world(self._project, self._folder / name, replacing=replaced) for name in ("whole", "interrupted")
            )
            if one.left_out:
                listed = ", ".join(one.left_out[:3]) + (" …" if len(one.left_out) > 3 else "")
                self._listener.progress(f"The runs do not see your checkpoints: {listed}")
            self._listener.progress("1 of 3: the whole run, in a copy of the project.")
            whole = self._prepared(one, session.name, {"record": True}, folder=session.folder.path)
            with shared(whole.engine) as self._engine, whole.running(self._listener):
                session.was_interrupted = whole.was_interrupted
                whole.report = self._restored(self._judged(whole, one, other))
            session.report = whole.report
            return whole.report
        finally:
            files = SafeFolder(self._folder.parent)
            if files.exists():
                files.remove_tree(session.name)

    def _judged(self, whole: Session, one: World, other: World) -> Report:
        """Return the report of the whole run with the result of the comparison."""
        report = replace(whole.report, checks=(), coverage=None)
        if report.verdict != "passed":
            why = _why_unjudged(report, one)
            return _inconclusive(report, why) if why else report
        observed = read_observed(whole.folder.path)
        run = read_run(observed)
        steps = min((len(each.states) for each in run.values()), default=0)
        if steps < 2:
            return _inconclusive(
                report, f"the script made {format_count(steps, 'optimizer step')}: there is nothing to resume"
            )
        sizes = self._sizes(one)
        checkpoints = find_checkpoints(observed, sizes, least=least_size(observed))
        if outside := self._outside(one, checkpoints):
            return _inconclusive(report, outside)
        interruption = choose_interruption(checkpoints, steps, self._options.at_step, epochs_of(run))
        torn = choose_torn(checkpoints, steps, sizes) if self._options.mid_save else None
        if torn:
            settings = _tearing(*torn, sizes, one, other)
            how = f"killed while it writes {Path(torn[1]).name} after step {torn[0].step}"
        else:
            settings = self._interrupting(interruption, sizes, one, other)
            how = f"interrupted after step {interruption.step}"
        self._listener.progress(f"2 of 3: again, {how} of {steps}.")
        interrupted, cut = self._observe(other, "interrupted", settings)
        if not was_interrupted(interrupted):
            return _inconclusive(
                report, f"the second run {cut.verdict} before it was interrupted: {cut.text}".rstrip(": ")
            )
        files = [path for path in other.sizes() if path.endswith(tuple(_suffixes(checkpoints)))]
        copied = reverse_times(files)
        words = f" with {shlex.join(self._arguments)}" if self._arguments else ""
        self._listener.progress(f"3 of 3: started again over the files of the second run{words}.")
        resumed, ending = self._observe(other, _RESUMED, {"record": True}, self._arguments)
        evidence = ThreeRuns(
            whole=observed,
            interrupted=interrupted,
            resumed=resumed,
            interruption=interruption,
            ending=ending,
            cut=cut,
            typed=self._typed,
            switch=self._resuming.name if self._resuming and not self._arguments else "",
            interval=saving_interval(self._session.sources.values(), self._session.request.spec.args),
            torn=Path(torn[1]).name if torn else "",
            is_torn_first=torn is not None and not any(0 < each.step < torn[0].step for each in checkpoints),
            copied=copied,
            has_other_hashes=self._has_hash_seeds,
        )
        judgement = judge(evidence)
        if judgement.status == "inconclusive":
            return _inconclusive(report, judgement.text)
        return concluded(replace(report, checks=(judgement.to_check(),)))

    def _interrupting(
        self, interruption: Interruption, sizes: dict[str, int], one: World, other: World
    ) -> dict[str, Any]:
        """Return what the ranks of the second run are told: its files are those of the first one, in another folder."""
        files = interruption.checkpoint.files if interruption.checkpoint else ()
        expected = {_moved(path, one, other): int(0.9 * sizes[path]) for path in files if path in sizes}
        signal = "KILL" if self._options.interrupt == "sigkill" else "TERM"
        return {"interrupt": {"step": interruption.step, "signal": signal, "grace": _GRACE_S, "files": expected}}

    def _observe(
        self, world: World, what: str, settings: dict[str, Any], arguments: tuple[str, ...] = ()
    ) -> tuple[Observed, Ending]:
        """Run the script in a world, and return what the ranks observed and how it ended. The page shows the resumed run."""
        resumes = what == _RESUMED
        run = self._prepared(
            world, f"{self._session.name}-{what}", settings, arguments, engine=self._engine, resumes=resumes
        )
        try:
            report = run.run(ProgressListener(self._listener))
            if report.verdict == "interrupted":
                raise KeyboardInterrupt
            observed = read_observed(run.folder.path)
            if resumes:
                self._session.folder.keep_compared(run.folder)
            return observed, Ending(verdict=report.verdict, cause=report.cause)
        finally:
            if run.folder.files.exists():
                delete(run.folder)

    def _prepared(
        self,
        world: World,
        name: str,
        settings: dict[str, Any],
        arguments: tuple[str, ...] = (),
        *,
        folder: Path | None = None,
        engine: Engine | None = None,
        resumes: bool = False,
    ) -> Session:
        """Return a session of the script in a world."""
        request = self._request_in(world, arguments, resumes=resumes)
        run = Session(request, name=name, folder=folder, engine=engine)
        seen = self._seen(world)
        for own, path in seen.items():
            run.add_mount(Path(own), path, read_only=False)
        roots = [str(world.project), *seen.values()]
        settings = {**settings, "roots": roots, "suffixes": SUFFIXES, "refusal": _REFUSAL}
        if run.plan.engine != "docker":
            settings["folders"] = {path: str(own) for path, own in world.replaced.items()}
        run.add_environment(**{SETTINGS: json.dumps(settings), "COMPOSESIM_SHARED": seen[str(world.shared)]})
        # So that the first two runs can be compared; the third has another seed, as any new process
        if self._has_hash_seeds:
            run.add_environment(**{NODE_HASHES: "1", "PYTHONHASHSEED": "2" if resumes else "1"})
        return run

    @cached_property
    def _has_hash_seeds(self) -> bool:
        plan, name = self._session.plan, "PYTHONHASHSEED"
        is_given = name in plan.environment or (plan.engine == "local" and name in os.environ)
        return not is_given and uses_hashes(self._session.sources)

    def _seen(self, world: World) -> dict[str, str]:
        """Return the folders of a world that nodes see under other paths."""
        is_docker = self._session.plan.engine == "docker"
        shared = f"{CONTAINER_FOLDER}/files-of-run" if is_docker else str(world.shared)
        return {str(world.shared): shared, **{str(own): folder for folder, own in world.replaced.items()}}

    def _sizes(self, world: World) -> dict[str, int]:
        """Return the bytes of files by the paths that nodes see."""
        seen = {os.path.realpath(own) + os.sep: there + os.sep for own, there in self._seen(world).items()}

        def in_nodes(path: str) -> str:
            return next((there + path[len(own) :] for own, there in seen.items() if path.startswith(own)), path)

        return {in_nodes(path): size for path, size in world.sizes().items()}

    def _outside(self, world: World, checkpoints: Sequence[Checkpoint]) -> str:
        """Return why the runs would see each other's checkpoints, or lose them; "" if all are in the copies."""
        roots = tuple(f"{os.path.realpath(each)}/" for each in (str(world.project), *self._seen(world).values()))
        named = [(path, each.at) for each in checkpoints for path in each.files if not path.startswith(roots)]
        if not named:
            return ""
        path, at = named[0]
        parents = sorted({str(Path(each).parent) for each, _ in named})
        shared = os.path.commonpath(parents)
        folders = parents if is_private(shared) or hides_system(shared) else [shared]
        options = [word for each in folders for word in ("--checkpoint-folder", each)]
        return (
            f"it saves '{path}'{where(at)} outside of the copies of the project, where the runs meet each other's files; "
            f"those of this run are still there. Try: {command_with(self._typed, options)}"
        )

    @property
    def _typed(self) -> tuple[str, ...]:
        spec = self._session.request.spec
        return self._session.request.command or ("check", "--resume", str(spec.script or spec.module))

    def _request_in(self, world: World, arguments: tuple[str, ...], *, resumes: bool) -> Request:
        request = self._session.request
        return world.request(request, *arguments).with_spec(**_size(self._options.world, resumes, request))

    def _resume_arguments(self) -> tuple[str, ...]:
        given, option = self._options.resume_args, self._resuming
        if given is not None:
            try:
                return tuple(shlex.split(given))
            except ValueError as error:
                hint = "composesim check --resume --resume-args '--resume last.pt' …"
                raise SpecError(f"--resume-args {given!r}: {error}", hint=hint) from None
        is_missing = option and option.is_switch and option.name not in self._session.request.spec.args
        return (option.name,) if option and is_missing else ()

    @cached_property
    def _resuming(self) -> ScriptOption | None:
        return resuming_option(self._session.sources.values())

    def _restored(self, report: Report) -> Report:
        """Return the report with the paths of the project in the place of those of its copies."""
        copies = {str(self._folder / name / "project"): str(self._project) for name in ("whole", "interrupted")}

        def restored(value: Any) -> Any:
            for copy, own in copies.items():
                value = value.replace(copy, own) if isinstance(value, str) else value
            return value

        checks = tuple(
            replace(
                each,
                detail=restored(each.detail),
                fix=restored(each.fix),
                place=replace(each.place, file=restored(each.place.file)) if each.place else None,
            )
            for each in report.checks
        )
        cause = report.cause
        if cause is not None:
            cause = replace(cause, message=restored(cause.message), traceback=restored(cause.traceback))
        return replace(report, checks=checks, cause=cause)


def reverse_times(paths: list[str]) -> bool:
    """Give files the time stamps of one another, the newest that of the oldest: no order of time survives copying.

    The same happens to folders with a number in their names. Return whether there were different ones.
    """
    files = [path for path in map(Path, paths) if path.is_file()]
    folders = {path.parent for path in files if any(map(str.isdigit, path.parent.name))}
    return any([_reverse_times(files), _reverse_times([*folders])])


def _reverse_times(paths: list[Path]) -> bool:
    ordered = sorted(paths, key=lambda path: path.stat().st_mtime_ns)
    times = [path.stat().st_mtime_ns for path in ordered]
    for path, time in zip(ordered, reversed(times), strict=True):
        os.utime(path, ns=(time, time))
    return len(set(times)) > 1


def _checked_folder(project: Path, folder: str) -> str:
    """Return the path without links of a folder that the runs see empty; raise SpecError if that cannot be."""
    path = Path(os.path.realpath(project / folder))
    if not path.exists():
        raise SpecError(f"the checkpoint folder '{folder}' does not exist", hint=f"mkdir -p {shlex.quote(str(path))}")
    is_needed = any(Path(each).resolve().is_relative_to(path) for each in (project, sys.prefix))
    if not path.is_dir():
        raise SpecError(
            f"the checkpoint folder '{folder}' is a file", hint="name the folder that the script saves into"
        )
    if is_needed or is_private(str(path)) or hides_system(str(path)):
        raise SpecError(
            f"the checkpoint folder '{folder}' holds more than checkpoints",
            hint="name the folder that the script saves into",
        )
    return str(path)


def _check_place(request: Request) -> None:
    """Raise SpecError if the script lies outside of the project: it could write beside itself, where there is no copy."""
    script = Path(request.folder, str(request.spec.script or "."))
    real = script.resolve()
    if script.exists() and not real.is_relative_to(request.folder.resolve()):
        raise SpecError(
            f"the script '{request.spec.script}' is not in '{request.folder}', of which check --resume makes copies",
            hint=f"cd {real.parent} && composesim check --resume {real.name}",
        )


def _size(world: str | None, resumes: bool, request: Request) -> dict[str, int]:
    """Return the size of the cluster for `--world N:M`: on nodes with as many ranks as before, if that is possible."""
    if world is None:
        return {}
    ranks = [int(each) for each in world.split(":")]
    each = request.spec.nproc_per_node if "nproc_per_node" in request.spec.model_fields_set else 1
    each = each if all(count and count % each == 0 for count in ranks) else 1
    return {"nodes": max(1, ranks[resumes] // each), "nproc_per_node": each}


def _tearing(checkpoint: Checkpoint, path: str, sizes: dict[str, int], one: World, other: World) -> dict[str, Any]:
    """Return what the ranks of the second run are told: the one that writes this file is killed when half of it is written."""
    size = sizes.get(path) or max((sizes.get(each, 0) for each in checkpoint.files), default=0)
    there = _moved(path, one, other)
    kill = {"step": checkpoint.step + 3, "signal": "KILL", "grace": 0}  # if the file is not written this time
    return {"half": {there: {"step": checkpoint.step, "bytes": max(1, size // 2)}}, "interrupt": kill}


def _why_unjudged(report: Report, world: World) -> str:
    """Return why a run failed only because it was part of this check; "" if it did not."""
    message = report.cause.message if report.cause else ""
    if _REFUSAL in message:
        return message[message.index(_REFUSAL) :]
    hidden = next((each for each in world.left_out if each in message), "")
    advice = "it is named like a checkpoint: keep it outside of the project, or rename it"
    return f"the script needs '{hidden}', which it does not see here because {advice}" if hidden else ""


def _moved(path: str, one: World, other: World) -> str:
    """Return the path in nodes of the same file in another world."""
    return path.replace(os.path.realpath(one.folder), os.path.realpath(other.folder))


def _suffixes(checkpoints: Sequence[Checkpoint]) -> set[str]:
    return {Path(path).suffix or path for each in checkpoints for path in each.files} or {"\0"}


def _inconclusive(report: Report, why: str) -> Report:
    result = CheckResult(id=ID, status="not-applicable", detail=why)
    return inconclusive(replace(report, checks=(result,)), why)
