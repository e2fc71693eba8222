"""Remove the nodes of a run when it is over, also from an engine that does not respond for a while."""

from __future__ import annotations

import time
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Thread

from compose_sim.app.listener import Listener
from compose_sim.core.plan.model import Plan
from compose_sim.engine.protocol import Engine
from compose_sim.errors import ComposesimError, EngineError

_CLEAN_UP_S = 30.0  # for an engine that does not respond; a daemon restarts in less
_RETRY_S = 1.0


class NodeRemoval:
    """The end of a run's nodes, unless the plan keeps them."""

    def __init__(self, engine: Engine, plan: Plan, *, log: Path) -> None:
        """`log` is where the supervisor writes, which goes on if this process gives up."""
        self._engine, self._run, self._log = engine, plan.run, log
        self.keep = plan.keep
        self._begun: Future[None] | None = None

    def begin(self) -> None:
        """Remove the nodes in the background; `finish` waits for that, and tries again if it fails."""
        removal: Future[None] = Future()

        def remove() -> None:
            try:
                self._engine.remove(self._run)
                removal.set_result(None)
            except BaseException as error:  # noqa: BLE001 - raised where the result is needed
                removal.set_exception(error)

        if not self.keep:
            with suppress(RuntimeError):  # no memory for a thread: `finish` removes them
                Thread(target=remove, daemon=True).start()
                self._begun = removal

    def finish(self, listener: Listener) -> bool:
        """
        Remove the nodes, and return False if the supervisor has to.

        An engine that does not respond, or a user who does not wait for it, must not cost the user the report.
        """
        try:
            if self.keep or self._remove(listener):
                return True
        except KeyboardInterrupt:
            pass
        listener.progress(f"A background process keeps trying: see {self._log}. Try: composesim prune")
        return False

    def _remove(self, listener: Listener) -> bool:
        """Remove the nodes; return False if the engine does not respond for long."""
        deadline, problem = time.monotonic() + _CLEAN_UP_S, ""
        while True:
            try:
                if begun := self._begun:
                    self._begun = None
                    begun.result()
                elif away := self._engine.problem():  # a ping, which takes no time even if the engine hangs
                    raise EngineError(away)
                else:
                    self._engine.remove(self._run)
                return True
            except (ComposesimError, OSError) as error:
                if not problem:
                    evidence = error.evidence if isinstance(error, ComposesimError) else ""
                    problem = self._engine.problem() or "\n".join(filter(None, (str(error), evidence)))
                    listener.progress(
                        f"{problem}\nWaiting to remove the nodes. Ctrl-C leaves that to a background process."
                    )
                if time.monotonic() > deadline:
                    return False
            time.sleep(_RETRY_S)
