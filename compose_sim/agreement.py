"""Assert, in a script or a test, that all ranks hold the same value: `composesim.agree(value)`."""

from __future__ import annotations

import ctypes
import hashlib
import json
import pickle
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
_MAX_SHOWN = 3
_LONGEST = 80


def agree(value: T, *, group: Any = None) -> T:
    """
    Return `value` if it is the same on all ranks, bit for bit; raise AssertionError that says which ranks hold what if not.

    `value` is a tensor, a module, an optimizer, a number, a string, anything that can be pickled, or a dict, list or tuple of these.
    All ranks of `group` (by default all ranks) must call it, as a collective. Without a process group, nothing is compared.
    """
    torch_distributed = sys.modules.get("torch.distributed")
    if torch_distributed is None or not torch_distributed.is_available() or not torch_distributed.is_initialized():
        return value
    dist: Any = torch_distributed
    held = dict(leaves(value))
    text = json.dumps(held)
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    if len(set(_gathered(dist, digest, group).values())) > 1:
        texts = _gathered(dist, text, group)
        raise AssertionError(disagreement({rank: json.loads(each) for rank, each in texts.items()}))
    return value


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path of each tensor, number or other object in a value, with a text that is equal only for equal ones."""
    if hasattr(value, "state_dict") and not isinstance(value, type):
        value = value.state_dict()
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from leaves(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)) and value:
        for index, each in enumerate(value):
            yield from leaves(each, f"{path}[{index}]")
    elif hasattr(value, "detach") and hasattr(value, "dtype"):
        yield path, _of_tensor(value)
    elif value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        yield path, repr(value)
    else:
        yield path, f"{type(value).__name__} {hashlib.blake2b(pickle.dumps(value), digest_size=8).hexdigest()}"


def disagreement(held: Mapping[int, Mapping[str, str]]) -> str:
    """Return which ranks hold what, for the first few paths that differ."""
    paths = list(dict.fromkeys(path for mine in held.values() for path in mine))
    different = [path for path in paths if len({mine.get(path) for mine in held.values()}) > 1]
    lines = []
    for path in different[:_MAX_SHOWN]:
        sides: dict[str, list[str]] = {}
        for rank, mine in held.items():
            sides.setdefault(mine.get(path, "nothing")[:_LONGEST], []).append(str(rank))
        shown = "; ".join(f"rank{'s'[: len(ranks) > 1]} {', '.join(ranks)}: {text}" for text, ranks in sides.items())
        lines.append(f"  {path or 'value'}: {shown}")
    more = f"\n  and {len(different) - _MAX_SHOWN} more" if len(different) > _MAX_SHOWN else ""
    return f"the ranks disagree on {len(different)} of {len(paths)} values:\n" + "\n".join(lines) + more


def _of_tensor(tensor: Any) -> str:
    """Return the type, shape and device-independent bits of a tensor; of a DTensor, those of the whole."""
    whole = tensor.detach()
    whole = (whole.full_tensor() if hasattr(whole, "full_tensor") else whole).cpu().contiguous()
    size = whole.numel() * whole.element_size()
    bits = hashlib.blake2b(ctypes.string_at(whole.data_ptr(), size) if size else b"", digest_size=8).hexdigest()
    few = f" {whole.flatten().tolist()}" if 0 < whole.numel() <= 2 else ""
    return f"{str(whole.dtype)[6:]}{list(whole.shape)}{few} {bits}"


def _gathered(dist: Any, text: str, group: Any) -> dict[int, str]:
    """Return what each rank of the group passes, by global rank; torch's own collectives of objects need NumPy."""
    torch: Any = sys.modules["torch"]
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    own = torch.tensor(list(text.encode()), dtype=torch.uint8, device=device)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, torch.tensor([len(own)], device=device), group=group)
    longest = max(int(size) for size in sizes)
    texts = [torch.zeros(longest, dtype=torch.uint8, device=device) for _ in sizes]
    dist.all_gather(texts, torch.nn.functional.pad(own, (0, longest - len(own))), group=group)
    found = (bytes(each[: int(size)].tolist()).decode() for each, size in zip(texts, sizes, strict=True))
    return dict(zip(dist.get_process_group_ranks(group), found, strict=True))
