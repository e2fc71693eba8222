"""Call the all_reduce of script.py, compare its result with the true sum, and count what it sends."""

import json

import torch
import torch.distributed as dist
from measure import Traffic, refusing, report
from script import all_reduce

ELEMENTS = 4096


def wrong_elements(traffic: Traffic, seed: int) -> int:
    """Return how many elements of a sum are wrong; the numbers are too large for a smaller type, and their sums are exact."""
    generator = torch.Generator().manual_seed(seed + dist.get_rank())
    tensor = torch.randint(0, 1 << 22, (ELEMENTS,), generator=generator).float()
    wanted = tensor.clone()
    dist.all_reduce(wanted)
    with traffic, refusing("files", "processes"):
        all_reduce(tensor)
    return int((tensor != wanted).sum())


def main() -> None:
    rank, traffic = dist.get_rank(), Traffic()
    wrong = wrong_elements(traffic, seed=0)
    # A sum that is right although every message arrives empty has traveled another way.
    missing = int(wrong_elements(Traffic(emptied=True), seed=10) > 0)
    for other, messages in sorted(traffic.messages.items()):
        sent = traffic.sent_bytes[other]
        print(json.dumps({"from": rank, "to": other, "messages": messages, "bytes": sent}), flush=True)
    report(
        wrong_elements=wrong,
        bytes_sent=traffic.sent_bytes.total(),
        messages=traffic.messages.total(),
        own_collectives=len(traffic.collectives),
        needs_its_messages=missing,
    )


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
