"""What drives Paddle in Ray's actors? The head of a Ray cluster, as of the role `ray-driver`, once it is known that there is a Paddle.

Takes the arguments of `ray-driver`.
"""

from __future__ import annotations

from ...master.driver_api import fail
from ...shared import installed
from ..ray import driver
from . import requirement


def main(arguments: list[str]) -> None:
    """Check for Paddle, then drive one run; does not return where the script ran."""
    try:
        requirement.require_paddle()
    except installed.Unfit as problem:
        fail(problem.code, str(problem), f"{requirement.HINT} paddle-ray, or composesim up --python /path/to/python …")
    driver.main(arguments)
