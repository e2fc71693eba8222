"""Call the all_reduce of script.py, compare its result with the true sum, and count what it sends."""

import json
from collections import Counter

import torch
import torch.distributed as dist

ELEMENTS = 4096
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "reduce",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
)
messages: Counter[int] = Counter()  # by receiver
sent_bytes: Counter[int] = Counter()
forbidden: Counter[str] = Counter()


def count_sends(name: str) -> None:
    """Count the messages that a function of torch.distributed sends."""
    original = getattr(dist, name)

    def counted(tensor, dst=None, *args, **kwargs):
        messages[dst] += 1
        sent_bytes[dst] += tensor.numel() * tensor.element_size()
        return original(tensor, dst, *args, **kwargs)

    setattr(dist, name, counted)


def count_collective(name: str) -> None:
    """Count the calls of a collective, which the script should do without."""
    original = getattr(dist, name)

    def counted(*args, **kwargs):
        forbidden[name] += 1
        return original(*args, **kwargs)

    setattr(dist, name, counted)


def main() -> None:
    rank, true_all_reduce = dist.get_rank(), dist.all_reduce
    for name in ("send", "isend"):
        count_sends(name)
    for name in COLLECTIVES:
        count_collective(name)
    from script import all_reduce  # after the counting began, so that `from torch.distributed import isend` counts

    tensor = torch.randint(0, 1000, (ELEMENTS,), generator=torch.Generator().manual_seed(rank)).float()
    wanted = tensor.clone()
    true_all_reduce(wanted)
    all_reduce(tensor)
    totals = torch.tensor(
        [int((tensor != wanted).sum()), sum(sent_bytes.values()), messages.total(), forbidden.total()]
    )
    true_all_reduce(totals, op=dist.ReduceOp.MAX)  # of the rank that is worst
    for other in sorted(messages):
        print(
            json.dumps({"from": rank, "to": other, "messages": messages[other], "bytes": sent_bytes[other]}), flush=True
        )
    if rank == 0:
        names = ("wrong_elements", "bytes_sent", "messages", "own_collectives")
        print(json.dumps({"step": 1, **dict(zip(names, totals.tolist(), strict=True))}), flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
