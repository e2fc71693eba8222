"""Drive Paddle in Ray's actors: check that Paddle is installed, then run the role `ray-driver` with the same arguments."""

from __future__ import annotations

from ....node.master.driver_membership import StartError, fail, require
from ....node.shared import plug_ins

OLDEST = "3.0"


def require_paddle(recipe: str) -> None:
    """Raise StartError if no supported version of PaddlePaddle is installed."""
    hint = f"composesim image build --recipe {recipe}, or composesim up --python /path/to/python …"
    require("paddle", OLDEST, "paddlepaddle", "paddlepaddle-gpu", hint=hint)


def main(arguments: list[str]) -> None:
    """Drive one run, and exit as the script does."""
    try:
        require_paddle("paddle-ray")
    except StartError as error:
        fail(error.code, str(error), error.hint)
    plug_ins.load(plug_ins.names("composesim.roles")["ray-driver"]).main(arguments)
