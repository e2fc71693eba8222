"""Tell how a job ended, from what Slurm knows about it."""

from __future__ import annotations

from collections.abc import Mapping

# State of a job -> the reason to stop, and what happened. FAILED and COMPLETED say no more than the nodes' exit codes.
_ENDINGS = {
    "TIMEOUT": ("timeout", "reached its time limit of {TimeLimit}"),
    "DEADLINE": ("timeout", "reached its deadline"),
    "CANCELLED": ("interrupted", "was canceled"),
    "OUT_OF_MEMORY": ("failure", "ran out of memory"),
    "NODE_FAIL": ("engine", "lost one of its nodes ({NodeList}), which failed"),
    "BOOT_FAIL": ("engine", "lost one of its nodes ({NodeList}), which did not boot"),
    "PREEMPTED": ("engine", "was preempted by another job"),
    "REQUEUED": ("engine", "was requeued, and a run does not start again: start a new one from its last checkpoint"),
}
RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT")
WAITING = ("PENDING", "CONFIGURING", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT", "REQUEUED")


def job_ending(job: Mapping[str, str]) -> tuple[str, str]:
    """
    Return the reason to stop a run and what happened to the job, from the fields that `scontrol show job` prints; "" if nothing did.

    A job that is preempted runs on for a grace period.
    """
    state = job.get("JobState", "")
    if job.get("PreemptTime", "None") not in ("None", "") and state != "COMPLETED":
        state = "PREEMPTED"
    elif int(job.get("Restarts", "0") or 0) and state in (*RUNNING, *WAITING):
        state = "REQUEUED"
    reason, words = _ENDINGS.get(state, ("", ""))
    return reason, f"the Slurm job {job.get('JobId')} {words.format_map(job)} [{state}]" if words else ""


def job_exit_code(job: Mapping[str, str]) -> int:
    """Return the exit code of a job that has ended: the highest of its steps, because that of the job may be a signal's."""
    for field in ("DerivedExitCode", "ExitCode"):
        code, _, number = job.get(field, "0:0").partition(":")
        if (int(code), int(number or 0)) != (0, 0):
            return int(code) or 128 + int(number)
    return 0
