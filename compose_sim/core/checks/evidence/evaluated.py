"""Compare the models that ranks evaluated after equally many steps, on the same line of the script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from compose_sim.core.events.observations import Observed
from compose_sim.node.records.models import EvaluatedModel, TensorHashes, TensorTable

Held = Mapping[str, str | None]  # the hash of each tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksEvaluated:
    """One model that several ranks evaluated."""

    by_rank: Mapping[int, EvaluatedModel]

    @property
    def first(self) -> EvaluatedModel:
        """The record of the first rank."""
        return self.by_rank[min(self.by_rank)]

    def held(self, kind: str) -> dict[int, Held]:
        """Return the hashes of the tensors of this kind, by rank."""
        return {
            rank: {row.name: hashed for row, hashed in zip(each.rows, each.hashes, strict=False) if row.kind == kind}
            for rank, each in self.by_rank.items()
        }


def evaluations(observed: Observed) -> Iterator[RanksEvaluated]:
    """Yield the models that at least two ranks evaluated after the same step."""
    found: dict[object, dict[int, EvaluatedModel]] = {}
    for each in observed.of(EvaluatedModel):
        found.setdefault((each.steps, each.type, each.at, each.rows), {}).setdefault(each.rank, each)
    yield from (RanksEvaluated(by_rank=by_rank) for by_rank in found.values() if len(by_rank) > 1)


def initial_weights(observed: Observed) -> dict[int, frozenset[str]]:
    """Return the hashes of the parameters that each rank held before its optimizers' first steps."""
    found: dict[int, frozenset[str]] = {}
    for rank in observed:
        kinds = {(each.optimizer, each.table): [row.kind for row in each.rows] for each in rank.of(TensorTable)}
        found[rank.rank] = frozenset(
            hashed
            for each in rank.of(TensorHashes)
            if each.nth == 0
            for kind, hashed in zip(kinds.get((each.optimizer, each.table), ()), each.hashes, strict=False)
            if kind == "parameter" and hashed
        )
    return found
