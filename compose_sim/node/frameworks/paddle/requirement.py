"""Does this Python have a PaddlePaddle that will do? Told from what is installed: to import it takes a second."""

from __future__ import annotations

import importlib.util
import sys

from ...master.driver_api import MISSING, TOO_OLD
from ...shared.installed import Unfit, is_older, version_of

OLDEST = "3.0"
HINT = "composesim image build --recipe"
_DISTRIBUTIONS = ("paddlepaddle", "paddlepaddle-gpu")


def require_paddle() -> None:
    """Unfit where there is none, or one that is too old."""
    if importlib.util.find_spec("paddle") is None:
        raise Unfit(MISSING, f"'{sys.executable}' on this node has no paddle")
    version = version_of(*_DISTRIBUTIONS)  # none where it was built from source, by another name
    if version and is_older(version, OLDEST):
        raise Unfit(TOO_OLD, f"paddle {version} is on this node, and {OLDEST} is the oldest that will do")
