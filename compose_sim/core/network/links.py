"""Parse `--link` texts, decide which shape each link between nodes has, and compare it with what was measured.

    [SCOPE=]SHAPE
    SCOPE   nothing: every link · node-0,node-1: all links of these nodes · node-0,node-1:node-2: those between the two groups
    SHAPE   1gbit,20ms,jitter=2ms,loss=0.1% in any order, or the name of a profile

Links to the master keep their full speed, because the master belongs to the simulation and not to the simulated cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import sqrt

from compose_sim.core.text import nearest

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_MICROSECONDS = {"us": 1, "ms": 10**3, "s": 10**6}
_NUMBER, _PREFIX, _TIME = "([0-9]+(?:[.][0-9]+)?)", "([kmgt]?)", "(us|ms|s)"
# Field of a Shape -> how it is written, the factors of its units, and the allowed values, also as text.
_FIELDS = {
    "rate_bits": (re.compile(f"(?:rate=)?{_NUMBER}{_PREFIX}bit"), _UNITS, 10**4, 10**12, "from 10kbit to 1tbit"),
    "delay_us": (re.compile(f"(?:delay=)?{_NUMBER}{_TIME}"), _MICROSECONDS, 0, 60 * 10**6, "at most 60s"),
    "jitter_us": (re.compile(f"jitter={_NUMBER}{_TIME}"), _MICROSECONDS, 0, 60 * 10**6, "at most 60s"),
    "loss_ppm": (re.compile(f"loss={_NUMBER}(%)"), {"%": 10**4}, 0, 10**6 - 1, "below 100%, which is a partition"),
}
_NODE = re.compile(r"node-(?:0|[1-9][0-9]*)")
_LIKE_A_NODE = re.compile("no|rank|master|[*]")
_EXAMPLE = "write it like 1gbit,20ms,jitter=2ms,loss=0.1%"

# Common bandwidths and one-way delays; a delay below 0.1 ms is less than the bridge itself adds.
PROFILES = {
    "plain": "",
    "ethernet-1g": "1gbit",
    "ethernet-10g": "10gbit",
    "cross-rack": "2.5gbit",  # a share of uplinks with an oversubscription of 4:1
    "cross-zone": "5gbit,500us",
    "cross-region": "1gbit,30ms,jitter=1ms,loss=0.01%",
    "wifi": "100mbit,3ms,jitter=1ms,loss=0.5%",
}
_NOT_PACKETS = ("rdma", "infiniband", "roce", "nvlink")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a link does to packets in each direction; None or 0 leaves a property as it is on this machine."""

    rate_bits: int | None = None  # bits per second
    delay_us: int = 0  # additional microseconds per packet, one way
    jitter_us: int = 0
    loss_ppm: int = 0  # packets lost out of a million

    def __str__(self) -> str:
        """Return the shape as `--link` takes it."""
        parts = [rate_text(self.rate_bits)] if self.rate_bits else []
        parts += [time_text(self.delay_us)] if self.delay_us else []
        parts += [f"jitter={time_text(self.jitter_us)}"] if self.jitter_us else []
        parts += [f"loss={self.loss_ppm / 10**4:.4f}".rstrip("0").rstrip(".") + "%"] if self.loss_ppm else []
        return ",".join(parts) or "plain"


PLAIN = Shape()


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A shape, and the links that have it: those between two groups of nodes, all links of one group, or every link."""

    shape: Shape
    nodes: tuple[str, ...] = ()  # empty: every link
    others: tuple[str, ...] = ()  # empty: links to any node

    def __str__(self) -> str:
        """Return the link as `--link` takes it."""
        scope = ":".join(",".join(group) for group in (self.nodes, self.others) if group)
        return f"{scope}={self.shape}" if scope else str(self.shape)

    @property
    def scope(self) -> frozenset[frozenset[str]]:
        """Return a value that is equal for equal scopes, however they were written."""
        return frozenset({frozenset(self.nodes), frozenset(self.others)})

    def holds_between(self, one: str, other: str) -> bool:
        """Return whether this applies to the link between two nodes."""
        if not self.others:
            return not self.nodes or one in self.nodes or other in self.nodes
        return (one in self.nodes and other in self.others) or (other in self.nodes and one in self.others)

    @property
    def breadth(self) -> tuple[int, int]:
        """Return a sort key, smaller for a more specific scope: between groups, of nodes, everywhere; then by number of nodes."""
        kind = 0 if self.others else 1 if self.nodes else 2
        return kind, len(self.nodes) * max(1, len(self.others))


def parse_link(text: str) -> Link:
    """Parse one `--link` text; raise ValueError with the text quoted if it is invalid."""
    head, separator, tail = text.partition("=")
    words = [word.strip() for word in re.split("[,:]", head)]
    if not separator or not any(map(_LIKE_A_NODE.match, words)):
        return Link(shape=parse_shape(text))
    for word in words:
        if not _NODE.fullmatch(word):
            raise ValueError(f"'{word}' in '{text}' is not a node: nodes are node-0, node-1 and so on")
    groups = [tuple(dict.fromkeys(word.strip() for word in group.split(","))) for group in head.split(":")]
    if len(groups) > 2:
        raise ValueError(f"'{text}' has {len(groups)} groups of nodes: a link is between two, node-0,node-1:node-2")
    both = sorted({*groups[0]}.intersection(*groups[1:])) if len(groups) == 2 else []
    if both:
        raise ValueError(f"'{both[0]}' in '{text}' is in both groups: a node has no link to itself")
    return Link(shape=parse_shape(tail), nodes=groups[0], others=groups[1] if len(groups) == 2 else ())


def parse_shape(text: str) -> Shape:
    """Parse `1gbit,20ms,jitter=2ms,loss=0.1%` or the name of a profile; raise ValueError with the text quoted."""
    name = text.strip().lower()
    if name in PROFILES:
        return parse_shape(PROFILES[name]) if PROFILES[name] else PLAIN
    if any(word in name for word in _NOT_PACKETS):
        raise ValueError(
            f"'{text}' cannot be simulated: such adapters bypass the kernel, which carries every packet here."
            " Its bandwidth can be, as in ethernet-10g"
        )
    values: dict[str, int] = {}
    for part in (part.strip() for part in name.split(",")):
        field, value = _field(part, text)
        if field in values:
            raise ValueError(f"'{part}' in '{text}' sets the {field.partition('_')[0]} twice")
        values[field] = value
    shape = Shape(**values)
    if shape.jitter_us > shape.delay_us:
        raise ValueError(f"the jitter of '{text}' is more than its delay: a packet cannot arrive before it was sent")
    return shape


def parse_one(what: str, text: str) -> Shape:
    """Return a shape with a single property, `rate`, `delay` or `loss`; raise ValueError with the text quoted."""
    if "," in text:
        raise ValueError(f"'{text}' sets more than one property of a link")
    return parse_shape(f"{what}={text}")


def _field(part: str, text: str) -> tuple[str, int]:
    """Return the field of a Shape that a part of the text sets, and the value."""
    for field, (form, units, least, most, range_in_words) in _FIELDS.items():
        if match := form.fullmatch(part):
            value = float(match[1]) * units[match[2]]  # infinite, if there are hundreds of digits
            if not least <= value <= most:
                raise ValueError(f"'{part}' in '{text}' is out of range: {range_in_words}")
            return field, round(value)
    raise ValueError(f"'{part}' in '{text}' is not part of a link: {_nearest(part)}")


def _nearest(part: str) -> str:
    if re.fullmatch(r"[0-9.]+[kmgt]?(bps|b/s|b)", part):
        return "rates are in bits per second, such as 10mbit"
    if re.fullmatch(r"[0-9.]+%", part):
        return f"name the property, such as loss={part}"
    near = nearest(part, PROFILES)
    return f"did you mean '{near}'?" if near else f"{_EXAMPLE}, or one of {', '.join(PROFILES)}"


def check_links(texts: Sequence[str], nodes: Sequence[str] = ()) -> None:
    """Raise ValueError if a text is invalid, repeats a scope, or names a node that is not in `nodes` (if there are any)."""
    seen: dict[frozenset[frozenset[str]], str] = {}
    for text in texts:
        link = parse_link(text)
        strange = [node for node in (*link.nodes, *link.others) if nodes and node not in nodes]
        if strange:
            raise ValueError(f"'{strange[0]}' in '{text}' is not a node of this cluster: {nodes[0]} to {nodes[-1]}")
        if link.scope in seen:
            raise ValueError(f"'{text}' and '{seen[link.scope]}' are for the same links: write one text for both")
        seen[link.scope] = text


def merged(texts: Sequence[str], changes: Sequence[str]) -> tuple[str, ...]:
    """Return the links after these changes: each replaces the link with the same scope; without changes, all links are cleared."""
    if not changes:
        return ()
    links = {link.scope: link for link in map(parse_link, (*texts, *changes))}
    return tuple(str(link) for link in links.values() if link.nodes or link.shape != PLAIN)


def shape_between(links: Iterable[Link], one: str, other: str) -> Shape:
    """Return the shape of the link between two nodes, the same in both directions: the most specific link wins, then the worst."""
    holding = [link for link in links if link.holds_between(one, other)]
    least = min((link.breadth for link in holding), default=None)
    return worst(link.shape for link in holding if link.breadth == least)


def worst(shapes: Iterable[Shape]) -> Shape:
    """Return the combination of shapes that apply at once: the lowest rate, the longest delay, the highest loss."""
    return reduce(_worse, shapes, PLAIN)


def _worse(one: Shape, other: Shape) -> Shape:
    rates = [rate for rate in (one.rate_bits, other.rate_bits) if rate]
    return Shape(
        rate_bits=min(rates, default=None),
        delay_us=max(one.delay_us, other.delay_us),
        jitter_us=max(one.jitter_us, other.jitter_us),
        loss_ppm=max(one.loss_ppm, other.loss_ppm),
    )


HEADER = ("links", "bandwidth", "delay", "jitter", "loss")


def link_row(text: str) -> tuple[str, ...]:
    """Return one link as a row below `HEADER`, with a dash for each property that it does not change."""
    link = parse_link(text)
    shape, between = link.shape, " and ".join(", ".join(group) for group in (link.nodes, link.others) if group)
    scope = f"between {between}" if link.others else f"of {between}" if link.nodes else "all"
    times = (time_text(time) if time else "-" for time in (shape.delay_us, shape.jitter_us))
    loss = str(Shape(loss_ppm=shape.loss_ppm)).removeprefix("loss=") if shape.loss_ppm else "-"
    return (scope, rate_text(shape.rate_bits) if shape.rate_bits else "-", *times, loss)


def rate_text(bits: int) -> str:
    """Return `10mbit`, as `--link` takes it."""
    return _text_in(bits, {f"{prefix}bit": factor for prefix, factor in _UNITS.items()})


def time_text(microseconds: int) -> str:
    """Return `20ms`, as `--link` takes it."""
    return _text_in(microseconds, _MICROSECONDS)


def _text_in(value: int, units: dict[str, int]) -> str:
    """Return the value in the largest unit that does not exceed it, without losing a digit."""
    unit, factor = max((pair for pair in units.items() if pair[1] <= value), key=lambda pair: pair[1])
    digits = len(str(factor)) - 1
    return (f"{value / factor:.{digits}f}".rstrip("0").rstrip(".") if digits else str(value)) + unit


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
