"""Call the straggler of script.py with timelines of steps in which ranks wait for one another."""

import random

import torch
import torch.distributed as dist
from measure import Traffic, report
from script import Event, straggler

STEPS = 12
NORMAL = {"data": 0.02, "forward": 0.1, "backward": 0.2, "optimizer": 0.03}
# Of each case: the slow rank, or -1; what it is slow in, and by which factor; and the rank of which one step is slow.
CASES = (
    (2, "backward", 1.5, 0),
    (0, "data", 6.0, 1),
    (-1, "forward", 1.0, 2),
    (1, "forward", 2.0, 1),
    (1, "optimizer", 4.0, 0),
)
ONE_FAST, ONE_SLOW = (11, 7, 4, 9, 2), (0, 0, 11, 5, 0)  # steps, in the order of the calls


def timelines(number: int, case: tuple, ranks: int) -> list[list[Event]]:
    slow, kind, factor, once = case
    chance = random.Random(number)
    now = [100.0 * chance.random() for _ in range(ranks)]  # of each clock
    found: list[list[Event]] = [[] for _ in range(ranks)]
    for step in range(STEPS):
        worked = [0.0] * ranks
        for rank in range(ranks):
            for name, normal in NORMAL.items():
                is_slow = (rank, name) == (slow, kind) and step != ONE_FAST[number]  # in most steps, not in all
                lasted = normal * chance.uniform(0.99, 1.01) * (factor if is_slow else 1)
                is_once = (rank, step, name) == (once, ONE_SLOW[number], "forward")  # compiles, or opens files
                lasted += 8.0 if is_once else 0
                found[rank].append(Event(step, name, now[rank], lasted))
                now[rank] += lasted
                worked[rank] += lasted
        for rank in range(ranks):  # the last one to come starts the transfer
            lasted = max(worked) - worked[rank] + 0.05
            found[rank].append(Event(step, "all_reduce", now[rank], lasted))
            now[rank] += lasted
    return found


def main() -> None:
    wrong, collectives, elements, ranks = 0, [], [], dist.get_world_size()
    drawn = torch.randint(1 << 30, (2,))  # no two runs have the same answers
    dist.broadcast(drawn, src=0)
    shift = int(drawn[0]) % ranks
    for number, (slow, kind, factor, once) in enumerate(random.Random(int(drawn[1])).sample(CASES, len(CASES))):
        slow = (slow + shift) % ranks if slow >= 0 else slow
        timeline = timelines(number, (slow, kind, factor, (once + shift) % ranks), ranks)[dist.get_rank()]
        with Traffic() as traffic:
            answer = straggler(timeline)
        wrong += answer != slow
        if answer != slow and dist.get_rank() == 0:
            was = f"rank {slow} was slow in {kind}" if slow >= 0 else "no rank was slow"
            print(f"{was}, and rank {(once + shift) % ranks} in one step; the answer was {answer}", flush=True)
        collectives.append(len(traffic.collectives))
        elements.append(traffic.elements())
    report(wrong_answers=wrong, collectives_per_call=collectives, elements_per_call=elements)


if __name__ == "__main__":
    torch.seed()
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
