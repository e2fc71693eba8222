"""Run the commands of Slurm with a time limit: a controller may answer slowly, or not at all."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence

from compose_sim.errors import CommandError, EngineSilentError, EnvironmentMissingError

ANSWERS_WITHIN_S = 60.0
_NO_CONTROLLER = ("Unable to contact slurm controller", "Socket timed out", "Connection refused", "Zero Bytes were")


def require_commands() -> None:
    """Raise EnvironmentMissingError if a command that the engine uses is not installed."""
    for command in ("sbatch", "srun", "squeue", "scancel", "scontrol"):
        if not shutil.which(command):
            raise EnvironmentMissingError(
                f"'{command}' was not found: this machine is not a login node of a Slurm cluster",
                hint=f"module load slurm, or which {command}",
            )


def ask(argv: Sequence[str], *, stdin: str = "", env: Mapping[str, str] | None = None, within_s: float = 0) -> str:
    """
    Return what a command of Slurm prints.

    Raises EnvironmentMissingError if it is not installed, EngineSilentError if the controller does not answer, else CommandError.
    """
    within_s = within_s or ANSWERS_WITHIN_S
    try:
        done = subprocess.run(
            argv, input=stdin, env=env, capture_output=True, text=True, errors="replace", timeout=within_s, check=False
        )
    except FileNotFoundError:
        require_commands()
        raise
    except subprocess.TimeoutExpired:
        raise EngineSilentError(
            f"the controller of the Slurm cluster has not answered '{argv[0]}' for {within_s:.0f} s",
            hint="scontrol ping",
        ) from None
    if done.returncode:
        output = (done.stderr or done.stdout).strip()
        if any(words in output for words in _NO_CONTROLLER):
            raise EngineSilentError(
                "the controller of the Slurm cluster does not answer", evidence=output, hint="scontrol ping"
            )
        raise CommandError(argv, done.returncode, output)
    return done.stdout
