"""Run one of composesim's own scripts, as `bench` and `doctor --gpu` do."""

from __future__ import annotations

from compose_sim.app.listener import QuietListener
from compose_sim.app.request import Request, new_name
from compose_sim.app.session import Session
from compose_sim.core.report.report import Report
from compose_sim.core.request.spec import ClusterSpec


def run_builtin(name: str, spec: ClusterSpec) -> tuple[Session, Report]:
    """Run a spec in this folder, and ignore a spec file in it; the run is named after `name`."""
    session = Session(Request(spec=spec), name=new_name(spec.model_copy(update={"script": name})))
    report = session.run(QuietListener())
    if session.was_interrupted:
        raise KeyboardInterrupt
    return session, report
