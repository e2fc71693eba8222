"""Read the computation of a loss from the nodes of its autograd graph, without computing anything again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

_MAX_NODES = 64


def nodes_near(node: Any) -> Iterator[Any]:
    """Yield the last operations of a computation, the nearest to its result first."""
    waiting, seen = deque([node]), {node}
    while waiting and len(seen) < _MAX_NODES:
        node = waiting.popleft()
        yield node
        following = [each for each, _ in node.next_functions if each is not None and each not in seen]
        waiting.extend(following)
        seen.update(following)


def operation(node: Any) -> str:
    """Return the name of a node's operation, such as "Mul" of MulBackward0."""
    return type(node).__name__.rstrip("0123456789").removesuffix("Backward")


def saved(node: Any, name: str) -> Any:
    """
    Return the tensor that a node has saved, by a name such as `_saved_result`; None if it has none.

    None also if a hook would make the tensor again: that of a checkpointed block runs the forward pass of the block once more.
    """
    kept = getattr(node, name.replace("saved", "raw_saved", 1), None)
    return getattr(node, name, None) if getattr(kept, "unpack_hook", None) is None else None
