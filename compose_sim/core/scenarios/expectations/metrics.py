"""Judge how the metrics of the script changed when the links were shaped."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from compose_sim.core.scenarios.expectations import Evaluation, FinishedRun, inconclusive, measured


def on_links_at_most(wanted: Mapping[str, float], run: FinishedRun) -> Evaluation:
    """Expect that shaped links reduce the median of each metric at least to this share of the median without shapes."""
    shares = {}
    for name in wanted:
        plain, shaped = _split_by_links(run, name)
        if not plain or not shaped:
            links = "have a shape" if plain else "have no shape"
            return inconclusive(f"the script prints no two values of '{name}' in a row while links {links}")
        if median(plain) <= 0:
            return inconclusive(f"the median of '{name}' is {median(plain):g} while links have no shape")
        shares[name] = median(shaped) / median(plain)
    words = ", ".join(f"{name} falls to {share:.0%}" for name, share in shares.items())
    good = all(shares[name] <= share for name, share in wanted.items())
    return measured(words, {name: round(share, 4) for name, share in shares.items()}, good=good)


def _split_by_links(run: FinishedRun, name: str) -> tuple[list[float], list[float]]:
    """Return the values of a metric without and with shaped links; the first after a change belongs to neither."""
    values: dict[bool, list[float]] = {False: [], True: []}
    are_shaped, has_changed = False, False
    for event in sorted(run.of("link", "metric"), key=lambda event: event.t):  # they come from two files
        if event.kind == "link":
            are_shaped, has_changed = bool(event.data.get("links")), True
            continue
        value = event.data.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            if not has_changed:
                values[are_shaped].append(float(value))
            has_changed = False
    return values[False], values[True]
