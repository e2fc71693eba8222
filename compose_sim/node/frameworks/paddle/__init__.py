"""Start Paddle through its own launcher."""

from __future__ import annotations

from ...starters.installed import require

OLDEST = "3.0"


def require_paddle(recipe: str) -> None:
    """Raise StartError if no supported version of PaddlePaddle is installed."""
    hint = f"composesim image build --recipe {recipe}, or composesim up --python /path/to/python …"
    require("paddle", OLDEST, "paddlepaddle", "paddlepaddle-gpu", hint=hint)
