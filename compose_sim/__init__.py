"""Simulate an N-node PyTorch training cluster on one machine: `composesim.run` and `composesim.check`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from compose_sim.version import __version__ as __version__

if TYPE_CHECKING:
    from compose_sim.agreement import agree
    from compose_sim.app.api import check, run
    from compose_sim.app.function_run import RankValues
    from compose_sim.core.report.report import Report
    from compose_sim.core.request.spec import ClusterSpec
    from compose_sim.errors import ComposesimError, EngineError, EnvironmentMissingError, RunError, SpecError

__all__ = [
    "ClusterSpec",
    "ComposesimError",
    "EngineError",
    "EnvironmentMissingError",
    "RankValues",
    "Report",
    "RunError",
    "SpecError",
    "agree",
    "check",
    "run",
]
# Imported when they are first used: the command line imports this package, and `--help` must stay quick.
_MODULES = {
    "ClusterSpec": "core.request.spec",
    "RankValues": "app.function_run",
    "Report": "core.report.report",
    "agree": "agreement",
    "check": "app.api",
    "run": "app.api",
}


def load_ipython_extension(shell: Any) -> None:
    """Add `%%ranks` to a notebook; `%load_ext composesim` calls this."""
    from compose_sim.app.notebook import register

    register(shell)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return sorted((*globals(), *__all__))
