"""Drive Paddle in Ray's actors: check that Paddle is installed, then run the role `ray-driver` with the same arguments."""

from __future__ import annotations

from ...master.driver_membership import fail
from ...shared import plug_ins
from ...starters.installed import StartError
from . import require_paddle


def main(arguments: list[str]) -> None:
    """Drive one run, and exit as the script does."""
    try:
        require_paddle("paddle-ray")
    except StartError as error:
        fail(error.code, str(error), error.hint)
    plug_ins.load(plug_ins.names("composesim.roles")["ray-driver"]).main(arguments)
