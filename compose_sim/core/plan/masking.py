"""Hide secrets in a plan that is printed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from compose_sim.core.plan.model import Plan

MASK = "***"
_SECRET_NAME = re.compile(r"secret|token|passw|passphrase|credential|(^|_)(auth|pwd|key)(_|$)|apikey", re.IGNORECASE)
_PASSWORD_IN_URL = re.compile(r"(?<=://)([^/\s:@]*):[^/\s@]+(?=@)")


def masked(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON values, without the values of variables whose names look like secrets, and without passwords in URLs."""
    values: dict[str, Any] = _masked(plan.to_dict())
    return values


def _masked(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: {name: _variable(name, text) for name, text in inner.items()}
            if key == "environment"
            else _masked(inner)
            for key, inner in value.items()
        }
    return [_masked(inner) for inner in value] if isinstance(value, list | tuple) else value


def is_secret(name: str) -> bool:
    """Return whether the name of a variable looks like that of a secret."""
    if name == "PWD" or name.startswith("COMPOSESIM_"):  # PWD is the folder of a shell, and part of every path below it
        return False
    return bool(_SECRET_NAME.search(name))


def _variable(name: str, value: str) -> str:
    if is_secret(name):
        return MASK
    return _PASSWORD_IN_URL.sub(rf"\1:{MASK}", value)
