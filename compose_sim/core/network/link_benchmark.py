"""Compare what was measured between two nodes with the shape of the link between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

from compose_sim.core.network.links import Shape, rate_text, time_text

TOLERANCE = 0.1
_OWN_DELAY_S = 0.0005  # the maximum round trip on this machine itself, without load
SECONDS = 3.0  # of each direction
_DATAGRAMS = 20000


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One thing that was measured, as numbers and as text. `wanted` is None if nothing was requested."""

    what: str
    unit: str  # "bit/s", "s" or "share"
    wanted: float | None
    measured: float
    gives_way: bool = False  # TCP sends less if packets are lost, so only a higher rate is an error

    @property
    def is_near(self) -> bool:
        """Whether it is within 10 % of the requested value; for loss, also within the random spread of this many packets."""
        if self.wanted is None:
            return True
        room = TOLERANCE * self.wanted
        if self.unit == "s":
            room += _OWN_DELAY_S / 2
        elif self.unit == "share":
            room += 3 * sqrt(self.wanted / _DATAGRAMS)
        return self.measured - self.wanted <= room and (self.gives_way or self.wanted - self.measured <= room)

    @property
    def row(self) -> tuple[str, str, str, str]:
        """Return the property, the requested and the measured value, and the deviation, as a row."""
        wanted = "-" if self.wanted is None else _words(self.wanted, self.unit)
        share = f"{self.measured / self.wanted:.0%}" if self.wanted else "-"
        if not self.is_near:
            share += ", not within 10%"
        elif self.wanted and self.gives_way:
            share += ", TCP gives way to loss"
        return self.what, wanted, _words(self.measured, self.unit), share


def arguments(shape: Shape) -> tuple[str, ...]:
    """Return the arguments of `templates/bench/link.py`: seconds for each direction, and datagrams to lose."""
    return (f"{SECONDS:g}", str(_DATAGRAMS if shape.loss_ppm else 0))


def compare(shape: Shape, metrics: Mapping[str, float]) -> tuple[Measurement, ...]:
    """Compare what `templates/bench/link.py` printed with the shape of the link; KeyError if it did not get that far."""
    rate = float(shape.rate_bits) if shape.rate_bits else None
    found = [
        Measurement(
            what=f"bandwidth {one} to {other}",
            unit="bit/s",
            wanted=rate,
            measured=metrics[key],
            gives_way=shape.loss_ppm > 0,
        )
        for one, other, key in (("node-0", "node-1", "to_node_1"), ("node-1", "node-0", "to_node_0"))
    ]
    delay = shape.delay_us / 10**6 or None
    found.append(Measurement(what="delay, one way", unit="s", wanted=delay, measured=metrics["round_trip_s"] / 2))
    if shape.loss_ppm:
        lost = metrics["lost_share"]
        found.append(Measurement(what="loss", unit="share", wanted=shape.loss_ppm / 10**6, measured=lost))
    return tuple(found)


def _words(value: float, unit: str) -> str:
    if unit == "share":
        return f"{value:.2%}"
    three_figures = int(float(f"{value * (10**6 if unit == 's' else 1):.3g}"))
    return time_text(max(1, three_figures)) if unit == "s" else rate_text(max(1, three_figures))
