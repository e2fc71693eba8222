"""Check a script: run it at world size N, replay the first steps at world size 1, and judge both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from compose_sim.app.listener import Listener, ProgressListener, QuietListener
from compose_sim.app.request import Request
from compose_sim.app.session import Session
from compose_sim.app.worlds import World, make_world
from compose_sim.core.checks import Case, where, why_no_step
from compose_sim.core.checks.mistakes import MISTAKES, NEED_A_REPLAY, has_reached_it, outcome
from compose_sim.core.checks.printed_numbers import exchange_alike, only_computes
from compose_sim.core.checks.repeated_steps import (
    beyond_tolerance,
    comparable,
    files_made,
    found_of_run,
    steps_of,
    was_replayed,
)
from compose_sim.core.checks.rules.replays import (
    evaluates,
    may_be_probed,
    needs_alone,
    other_batches,
    reason_against,
)
from compose_sim.core.checks.rules.updates import are_comparable
from compose_sim.core.checks.run import coverage, run_checks, why_inconclusive
from compose_sim.core.checks.source import JUDGED_BY, find_hints, only_fsdp_moves, uses_hashes
from compose_sim.core.events.observations import Observed
from compose_sim.core.report.report import Cause, MistakeReport, Report
from compose_sim.core.request.names import CHECK_MODES, chosen
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.core.verdict.verdict import EXIT_CODES, VerdictWord
from compose_sim.engine.project_files import kept
from compose_sim.engine.protocol import Engine
from compose_sim.engine.registry import shared
from compose_sim.engine.run_folder.finished import delete
from compose_sim.engine.run_folder.folder import COPY
from compose_sim.engine.run_folder.judging_time import judging_time
from compose_sim.engine.run_folder.record import read_case, read_events, read_logs, read_observed
from compose_sim.errors import ComposesimError, OutOfTimeError, SpecError
from compose_sim.plugins.registry import built_in

DEFAULTS = {  # of the cluster, as flags take them
    "hang_timeout": "15s",  # a check ends when a hang is diagnosed; `up` warns, and waits longer
}
_NEED_A_REPLAY = {"loss-scale", "matches-single"}
_RECORD = "record"  # in the run's folder, writable for all nodes and cleared by a new run of the same name
_TAKES_NO_CPU_TENSOR = "No backend type associated with device type cpu"  # a process group of NCCL
_MIXES_DEVICES = "Expected all tensors to be on the same device"
_STARTS_S = 10.0  # a run of one rank, at most
_REPLAYS_TAKE_S = 120.0  # in addition to a multiple of the time that the run itself took


def check_request(request: Request) -> Request:
    """Return the request with the defaults of a check: no patience with hangs, no services.

    Raises SpecError if the request leaves nothing to check, so that such a CI job does not pass.
    """
    spec = request.spec
    if spec.recipe != "ddp":
        raise SpecError(
            f"recipe '{spec.recipe}' cannot be checked: the checks judge torch.distributed scripts",
            hint="composesim check SCRIPT, or composesim up for the exit code alone",
        )
    if not (spec.script or spec.module):
        raise SpecError(
            f"no script was named, neither as an argument nor in a spec file in '{request.folder}'",
            hint="composesim check SCRIPT",
        )
    if not chosen(spec.check.only, spec.check.skip):
        raise SpecError("--only and --skip leave no checks to run", hint="composesim check SCRIPT")
    ours = ClusterSpec.model_validate(DEFAULTS)
    left_out = {name: getattr(ours, name) for name in DEFAULTS if name not in spec.model_fields_set}
    return replace(request.with_spec(**left_out, services=(), publish={}), isolates=True)


def check(session: Session, listener: Listener) -> Report:
    """Run a session, replay the first steps if a chosen check needs that, and return the report with all chosen checks.

    A plug-in may check in another way, if its option of the same name is set.
    """
    settings = session.request.spec.check
    other = next((each for name, each in built_in(CHECK_MODES).items() if getattr(settings, name)), None)
    if other:
        report: Report = other.load()(session, listener)
        return report
    report = CheckedRun(session, listener).run()
    return _without_gpus(session, listener, report.cause) if report.cause and _needs_no_gpus(session) else report


def _needs_no_gpus(session: Session) -> bool:
    """Return whether a script leaves its tensors on the CPU, while NCCL or FSDP take the GPUs, which are emulated unasked."""
    spec, cause = session.request.spec, session.report.cause
    is_emulated = any((choice.what, choice.value) == ("gpus", "emulated") for choice in session.plan.choices)
    is_unasked = spec.gpus == "auto" and spec.backend == "auto" and not spec.gpus_per_node
    if not (is_emulated and is_unasked and cause):
        return False
    mixes = _MIXES_DEVICES in cause.message and only_fsdp_moves(session.sources)
    return mixes or _TAKES_NO_CPU_TENSOR in cause.message


def _without_gpus(session: Session, listener: Listener, cause: Cause) -> Report:
    """Check the script again, where it sees no GPU, and note how it ended with emulated GPUs."""
    at = where((cause.place.file, cause.place.line)) if cause.place and cause.place.line else ""
    note = f"with GPUs, which are emulated here, this script fails{at}: {cause.first_line}. It was checked without GPUs"
    listener.progress(f"note: {note}.")
    request = session.request.with_spec(gpus="none")
    again = Session(request, name=session.name, folder=session.folder.path, engine=session.engine)
    session.report = CheckedRun(again, listener, note=note).run()
    session.plan, session.was_interrupted = again.plan, again.was_interrupted
    return session.report


def with_mistake(session: Session, name: str, copy: World | None = None) -> MistakeReport:
    """Run a session's script once more with a known mistake, if need be in a copy, and return what the checks say of it."""
    settings = session.request.spec.check
    skip = settings.skip if name in NEED_A_REPLAY else (*settings.skip, *sorted(_NEED_A_REPLAY))
    only = tuple(each for each in settings.only if each not in skip)
    request = session.request.with_spec(
        check=settings.model_copy(update={"self_test": False, "skip": skip, "only": only}), keep=False
    )
    request = copy.request(request) if copy else request
    planted = Session(request, name=f"{session.name}-{name}", engine=session.engine)
    planted.add_environment(COMPOSESIM_MISTAKE=name)
    try:
        run = CheckedRun(planted, QuietListener())
        return outcome(name, session.report, run.run(), is_planted=run.is_planted, no_step=run.no_step)
    finally:
        if planted.folder.files.exists():
            delete(planted.folder)


@dataclass(frozen=True, slots=True)
class _Replay:
    """What another run observed, why that is not usable, and what its rank 0 printed."""

    observed: Observed | None
    why: str = ""
    printed: tuple[str, ...] = ()

    @property
    def has_steps(self) -> bool:
        return bool(steps_of(self.observed))


class CheckedRun:
    """A run whose first steps are recorded, replayed at world size 1 if a chosen check needs that, and judged."""

    def __init__(self, session: Session, listener: Listener, *, note: str = "") -> None:
        """Read the script, and note its lines that are often wrong; `note` becomes one of the report."""
        self._session, self._listener, self._note = session, listener, note
        self._settings = session.request.spec.check
        checks = set(chosen(self._settings.only, self._settings.skip))
        self._replays, self._compares_prints = bool(_NEED_A_REPLAY & checks), "metric-local" in checks
        self._engine: Engine | None = None  # which the replays share
        # What the run wrote and replays would read, and the copy of the project without it, in which they then run
        self._left = frozenset[str]()
        self._copy: World | None = None
        self.no_step = ""  # what `why_no_step` says of the run
        self.is_planted = False  # whether the script has reached a mistake that was planted
        self._hints = tuple(find_hints(session.sources))
        for hint in self._hints:
            if JUDGED_BY.get(hint.text) not in checks:
                listener.progress(f"note: {hint}")

    def run(self) -> Report:
        """Run, replay and judge. An interrupted replay costs only the checks that need it."""
        session, interrupted = self._session, False
        self._record()
        sharing = shared(session.engine) if self._replays else nullcontext()
        with sharing as self._engine, session.running(self._listener):
            try:
                with judging_time():
                    case = replace(read_case(session.folder.path, session.report), sources=session.sources)
            except OutOfTimeError as error:
                session.report = inconclusive(session.report, str(error))
                return session.report
            self.is_planted, self.no_step = has_reached_it(case.observed), why_no_step(case.observed)
            if self._settings.tolerance is not None:
                case = replace(case, tolerance=self._settings.tolerance)
            written = case.files_written
            try:
                with kept(written, session.request.folder):
                    case = self._probe(self.replay(case)) if self._replays else case
            except KeyboardInterrupt:  # the first run is worth a report even without a replay
                interrupted, case = True, replace(case, why_no_single="it was interrupted at world size 1")
                session.was_interrupted = True
            finally:
                session.folder.files.remove_tree(_RECORD)
                self._remove_copy()
            report = self.judge(case)
            session.report = _with_verdict(report, "interrupted", report.cause) if interrupted else report
            if self._settings.self_test and session.report.verdict in ("passed", "inconclusive"):
                with kept(written, session.request.folder):
                    session.report = replace(session.report, mistakes=tuple(self._planted_mistakes()))
            elif self._settings.self_test:
                self._listener.progress("note: no mistake was planted, because the run itself failed")
        return session.report

    def _planted_mistakes(self) -> Iterator[MistakeReport]:
        """Yield what the checks say of each known mistake, as far as the user waits for it."""
        for name, mistake in MISTAKES.items():
            self._listener.progress(f"Self-test: {mistake.text}.")
            try:
                found = with_mistake(self._session, name, self._copy_without(self._left) if self._left else None)
            except KeyboardInterrupt:
                self._session.was_interrupted = True
                return
            except ComposesimError as error:
                found = MistakeReport(id=name, text=mistake.text, status="not-planted", why=error.message)
            finally:
                self._remove_copy()
            yield found

    def replay(self, case: Case) -> Case:
        """
        Return the case with the observations of replays, or with the reason why there are none.

        The first replay gets the batches of all ranks; if it differs, one replay for each rank gets the batches of that rank.
        """
        why = _why_no_replay(case)
        if self._compares_prints and only_computes(case):
            return replace(case, why_no_single=why, single_log=self._printed_by_one_rank(case))
        if why:
            return self._replay_update(replace(case, why_no_single=why))
        self._listener.progress("Replaying the first steps at world size 1.")
        single = self._without_files_of_the_run(case, self._replay("single"))
        times = max(other_batches(single.observed), 1)
        single = self._with_larger_batches(single, times) if times > 1 else single
        if (
            single.observed
            and beyond_tolerance(comparable(steps_of(single.observed)), case)
            and evaluates(case.observed)
        ):
            single = self._with_recorded_evaluations(single, times)
        if single.observed and not single.why and (read := why_no_step(single.observed)):
            self._listener.progress(
                f"note: world size 1 made no step{read}. Let it save into $COMPOSESIM_SHARED, which is empty in each run."
            )
        case = replace(case, single=single.observed, single_log=single.printed, why_no_single=single.why)
        if not single.has_steps:
            return self._replay_update(case)
        alone: dict[int, Observed] = {}
        for rank in sorted(case.observed.ranks) if needs_alone(case) else []:
            self._listener.progress(f"World size 1 differs: replaying the steps with the batches of rank {rank} only.")
            found = self._replay(f"alone-{rank}", COMPOSESIM_RECORD_RANK=str(rank))
            if found.why or not found.observed:
                break
            alone[rank] = found.observed
        return replace(case, alone=alone)

    def _printed_by_one_rank(self, case: Case) -> tuple[str, ...]:
        """Return what one rank prints, if it goes through the same rounds of computing as all of them."""
        self._listener.progress("Running once at world size 1, to compare what it prints.")
        found = self._replay("single", patience=_STARTS_S + 3 * (self._session.report.timings.total_s or 0.0))
        return found.printed if found.observed and exchange_alike(case.observed, found.observed) else ()

    def _without_files_of_the_run(self, case: Case, single: _Replay) -> _Replay:
        """Replay in a copy of the project without what the run made, if world size 1 has read that."""
        made = files_made(case.observed)
        read = found_of_run(made, single.observed) if single.observed else None
        copy = self._copy_without(made) if read else None
        if read is None or copy is None:
            return single
        self._listener.progress(f"World size 1 read {read.path}, which the run wrote: again, in a copy without it.")
        self._copy = copy
        again = self._replay("single")
        if not again.has_steps:  # the script needs what a copy lacks
            self._copy = None
            return single
        self._left = made
        return again

    def _with_larger_batches(self, single: _Replay, times: int) -> _Replay:
        self._listener.progress(f"World size 1 makes other batches: again, with {times} times the batch sizes.")
        again = self._replay("single", COMPOSESIM_BATCH_TIMES=str(times))
        is_better = again.observed and was_replayed(again.observed) and not other_batches(again.observed)
        return again if is_better else single

    def _with_recorded_evaluations(self, single: _Replay, times: int) -> _Replay:
        self._listener.progress("World size 1 differs: again, with recorded batches where it seemed to evaluate.")
        again = self._replay("single", COMPOSESIM_RECORDED_PASSAGES="1", COMPOSESIM_BATCH_TIMES=str(times))
        return replace(again, printed=()) if again.has_steps else single

    def _replay_update(self, case: Case) -> Case:
        """Return the case with a replay of what the first step makes of the weights, if its gradients cannot be compared."""
        if case.verdict != "passed" or not are_comparable(case.observed):
            return case
        self._listener.progress("Replaying the first step at world size 1, to compare the weights.")
        return replace(case, weights=self._replay("weights", COMPOSESIM_REPLAY_WEIGHTS="1").observed)

    def _probe(self, case: Case) -> Case:
        """Return the case with a second run that moves parameters, if nothing could be compared with one rank."""
        if not may_be_probed(case):
            return case
        self._listener.progress("Running the first steps again, to compare the gradients with the loss.")
        return replace(case, probed=self._replay("probe", is_whole=True, COMPOSESIM_CHECK="probe").observed)

    def _copy_without(self, written: frozenset[str]) -> World | None:
        """Return a copy of the project without what the run wrote; None if that is not possible."""
        request, folder = self._session.request, self._session.folder
        if not Path(request.folder, request.spec.script or ".").resolve().is_relative_to(request.folder.resolve()):
            return None
        self._remove_copy()
        try:
            return make_world(request.folder, folder.path / COPY, without=written)
        except (ComposesimError, OSError) as error:
            self._listener.progress(f"note: the project could not be copied: {error}")
            return None

    def _remove_copy(self) -> None:
        try:
            self._session.folder.files.remove_tree(COPY)
        except (ComposesimError, OSError) as error:  # the script may have taken its folder's permissions
            self._listener.progress(f"note: a copy of the project is left in the folder of the run: {error}")

    def judge(self, case: Case) -> Report:
        """Return the report with the results of the chosen checks, and the verdict of run and checks together."""
        only, skip = self._settings.only, self._settings.skip
        with judging_time():
            results = run_checks(case, only=only, skip=skip)
        found = coverage(results, only=only)
        checks = tuple(result.to_report() for result in results)
        judged = {each.id for each in checks if each.status != "not-applicable"}
        hints = tuple(hint for hint in self._hints if JUDGED_BY.get(hint.text) not in judged)
        notes = (*self._session.report.notes, *filter(None, [self._note]))
        report = concluded(replace(self._session.report, checks=checks, coverage=found, hints=hints, notes=notes))
        if report.verdict != "passed":
            return report
        why = why_inconclusive(case, results, found, only=only, is_strict=self._settings.strict)
        return inconclusive(report, why) if why else report

    def _record(self) -> None:
        """Let the ranks' observers look closer, and record steps if there is a replay."""
        session, steps = self._session, self._settings.steps
        if uses_hashes(session.sources):
            session.add_environment(COMPOSESIM_OWN_HASHES="1")
        session.add_environment(COMPOSESIM_CHECK="record")
        if self._replays or steps:
            limit = {"COMPOSESIM_CHECK_STEPS": str(steps)} if steps else {}
            record = session.add_mount(session.folder.path / _RECORD, _RECORD, read_only=False)
            session.add_environment(COMPOSESIM_RECORD=record, **limit)

    def _replay(self, name: str, *, is_whole: bool = False, patience: float = 0.0, **variables: str) -> _Replay:
        """Return what another run observed, at world size 1 unless it is a whole one."""
        session = self._session
        patience = patience or _REPLAYS_TAKE_S + 4 * (session.report.timings.total_s or 0.0)
        request, copy = session.request, self._copy
        request = copy.request(request) if copy else request
        size = {} if is_whole else {"nodes": 1, "nproc_per_node": 1}
        request = request.with_spec(**size, keep=False, subnet=None, timeout=patience)
        replay = None
        try:
            replay = Session(request, name=f"{session.name}-{name}", engine=self._engine)
            record = replay.add_mount(session.folder.path / _RECORD, _RECORD)
            replay.add_environment(**{"COMPOSESIM_CHECK": "replay", "COMPOSESIM_RECORD": record, **variables})
            result = replay.run(ProgressListener(self._listener))
            observed = read_observed(replay.folder.path, moved=(copy.project, session.request.folder) if copy else None)
            logs = read_logs(replay.folder.path, read_events(replay.folder.path)) if name == "single" else {}
        except ComposesimError as error:
            return _Replay(None, f"there was no run at world size 1: {error.message}")
        finally:
            if replay is not None and replay.folder.files.exists():
                delete(replay.folder)
        if result.verdict == "interrupted":
            raise KeyboardInterrupt
        cause = None if was_replayed(observed) else result.cause
        why = f"at world size 1 the script {result.verdict}: {cause.first_line}" if cause else ""
        return _Replay(observed, why, logs.get(0, ()))


def _why_no_replay(case: Case) -> str:
    is_teardown = case.verdict == "failed" and case.cause is not None and case.cause.kind == "teardown"
    if case.verdict != "passed" and not is_teardown:
        return f"the run {case.verdict}" if case.verdict in ("failed", "hung") else f"the run ended: {case.verdict}"
    return reason_against(case.observed)


def concluded(report: Report) -> Report:
    """Return the report with the verdict of run and checks together.

    The first failed check that follows from no other is the cause of a failure; a crash after the training is only a warning.
    """
    verdict, cause = report.verdict, report.cause
    if verdict == "failed" and cause and cause.kind == "teardown":
        verdict, cause = "passed", None
    first = next((result for result in report.checks if result.status == "failed" and not result.follows), None)
    if verdict == "passed" and first:
        verdict, cause = "failed", Cause(kind="check", message=f"{first.id}: {first.detail}")
    return _with_verdict(report, verdict, cause)


def inconclusive(report: Report, why: str) -> Report:
    """Return the report of a run that passed, but of which too little could be judged."""
    return _with_verdict(report, "inconclusive", Cause(kind="coverage", message=why))


def _with_verdict(report: Report, verdict: VerdictWord, cause: Cause | None) -> Report:
    return replace(report, verdict=verdict, exit_code=EXIT_CODES[verdict], cause=cause)
