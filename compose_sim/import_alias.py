"""`import composesim`: the public API of compose_sim, under the name of the command and the distribution.

A wheel, and an editable install, hold this file as `composesim/__init__.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import compose_sim
from compose_sim import __version__ as __version__

if TYPE_CHECKING:
    from compose_sim import *  # noqa: F403

__all__ = compose_sim.__all__


def __getattr__(name: str) -> Any:
    return getattr(compose_sim, name)


def __dir__() -> list[str]:
    return dir(compose_sim)
