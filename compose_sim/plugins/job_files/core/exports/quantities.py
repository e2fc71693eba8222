"""Write and read quantities of Kubernetes: `512Mi`, `500m`."""

from __future__ import annotations

import re
from decimal import Decimal

_BINARY = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50}
_DECIMAL = {
    "n": "1e-9",
    "u": "1e-6",
    "m": "1e-3",
    "": "1",
    "k": "1e3",
    "M": "1e6",
    "G": "1e9",
    "T": "1e12",
    "P": "1e15",
}
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{0,9})?)(?:[eE]([0-9]{1,2})|([numkMGTP]|[KMGTP]i)?)")


def quantity(size: int) -> str:
    """Return bytes as a quantity: `512Mi`. Kubernetes reads the `512m` of Docker and composesim as 0.512 bytes."""
    for unit in ("Gi", "Mi", "Ki"):
        if size % _BINARY[unit] == 0:
            return f"{size // _BINARY[unit]}{unit}"
    return str(size)


def parse_quantity(text: str) -> float:
    """Return the number that a quantity stands for; raise ValueError for other text."""
    match = _QUANTITY.fullmatch(text.strip())
    if not match:
        raise ValueError(f"'{text:.40}' is not a quantity: write it like 500m, 2 or 16Gi")
    number, exponent, suffix = Decimal(match[1]), int(match[2] or 0), match[3] or ""
    factor = Decimal(_BINARY[suffix]) if suffix in _BINARY else Decimal(_DECIMAL[suffix])
    return float(number * factor * Decimal(10) ** exponent)
