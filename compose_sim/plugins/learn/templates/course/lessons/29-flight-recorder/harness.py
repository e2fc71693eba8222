"""Call the diagnose of script.py with what the flight recorders of six ranks hold after hangs of several kinds."""

import pickle
import random
from collections import Counter
from itertools import product
from typing import Any, NamedTuple

from measure import report
from script import Finding, diagnose

RANKS, KEPT, BEGAN_NS = 6, 22, 1_795_968_611_000_000_000
TORCH = "/opt/venv/lib/python3.11/site-packages/torch/distributed/"
STAGE, BRIDGE, ALL = range(3)  # kinds of groups: three ranks that share layers, one rank of each stage, and all ranks
KINDS = ("leaves", "two leave", "leaves its stage", "without a dump", "swaps", "calls once more", "other size")


class Call(NamedTuple):
    kind: int  # of the group
    operation: str
    sizes: list[list[int]]
    place: tuple[str, int]


class Job:
    """Six ranks in two stages, of which some go wrong in a late step."""

    def __init__(self, chance: random.Random, kind: str, *, is_nccl: bool) -> None:
        self.chance, self.is_nccl = chance, is_nccl
        ranks = chance.sample(range(RANKS), RANKS)
        stages = chance.sample([sorted(ranks[:3]), sorted(ranks[3:])], 2)
        self.groups = {"0": sorted(ranks), "1": sorted((ranks[0], ranks[3])), "2": stages[0], "3": stages[1]}
        self.names = {  # of the groups of a rank, by kind
            rank: ("2" if rank in stages[0] else "3", "1" if rank in self.groups["1"] else "", "0") for rank in ranks
        }
        self.lines = iter(chance.sample(range(20, 400), 8))
        culprits = ranks[1:5:3] if kind == "two leave" else [ranks[1]]
        self.silent = culprits if kind == "without a dump" else []
        self.programs, self.wanted = self._programs(kind, culprits)
        self.issued: dict[int, list[tuple[str, int]]] = {rank: [] for rank in ranks}
        self.calls: dict[tuple[str, int], dict[int, Call]] = {}
        mixed_up = is_nccl and kind in ("swaps", "calls once more")
        self.garbled = {self.wanted[1:3]} if mixed_up else set()  # which NCCL may end with wrong values
        self._run()

    def _call(self, kind: int, operation: str, *sizes: int) -> Call:
        file = self.chance.choice(("train.py", "stages.py", "metrics.py"))
        return Call(kind, operation, [[*sizes]] if sizes else [], (f"/home/ada/job/{file}", next(self.lines)))

    def _programs(self, kind: str, culprits: list[int]) -> tuple[dict[int, list[Call]], Finding]:
        """Return what each rank calls, and what is to be found."""
        partial, normed = self._call(STAGE, "all_reduce", 16, 64), self._call(STAGE, "all_gather", 64)
        handed_on = self._call(BRIDGE, "broadcast", 16, 64)
        gradient, loss = self._call(ALL, "all_reduce", 4160), self._call(ALL, "all_reduce", 1)
        agreed, extra = self._call(ALL, "barrier"), self._call(ALL, "barrier")
        short = self._call(STAGE, "all_gather", 48)
        step, steps = [partial, normed, handed_on, gradient, loss], self.chance.randint(9, 14)
        stage, of_all = self.names[culprits[0]][STAGE], 2 * steps + steps // 4  # of all ranks, in the steps before
        absent = (step[:3], "0", of_all + 1, gradient)
        wrong, group, number, met = {
            **{"leaves": absent, "two leave": absent, "without a dump": absent},
            "leaves its stage": (step[:1], stage, 2 * steps + 2, normed),
            "swaps": ([*step[:3], loss, gradient], "0", of_all + 1, loss),
            "calls once more": ([*step[:4], extra, loss], "0", of_all + 2, extra),
            "other size": ([partial, short, *step[2:]], stage, 2 * steps + 2, short),
        }[kind]
        good = [call for each in range(steps) for call in [*step, *[agreed] * (each % 4 == 3)]]
        programs = {rank: good + (wrong if rank in culprits else [*step, agreed]) for rank in self.names}
        own = {rank: [call for call in calls if self.names[rank][call.kind]] for rank, calls in programs.items()}
        return own, Finding(sorted(culprits), group, number, *met.place)

    def _run(self) -> None:
        """Let each rank call until it waits: a collective ends when all of its group have come, with the same call."""
        waits = [*self.names]
        while waits:
            rank = self.chance.choice(waits)
            done = len(self.issued[rank])
            if done == len(self.programs[rank]) or (done and not self._has_ended(*self.issued[rank][-1])):
                waits.remove(rank)
                continue
            call = self.programs[rank][done]
            group = self.names[rank][call.kind]
            number = 1 + sum(each == group for each, _ in self.issued[rank])
            self.issued[rank].append((group, number))
            self.calls.setdefault((group, number), {})[rank] = call
            waits = [*self.names]  # somebody may have waited for this

    def _has_ended(self, group: str, number: int) -> bool:
        came = self.calls[group, number]
        calls = {(call.operation, str(call.sizes)) for call in came.values()}
        return len(came) == len(self.groups[group]) and (len(calls) == 1 or (group, number) in self.garbled)

    def dumps(self) -> dict[int, dict[str, Any]]:
        """Return what torch would have recorded, by rank, in torch's own format."""
        return {rank: self._dump(rank) for rank in sorted(self.names) if rank not in self.silent}

    def _dump(self, rank: int) -> dict[str, Any]:
        own = [name for name, ranks in self.groups.items() if rank in ranks]
        began = BEGAN_NS + self.chance.randrange(10**9)  # clocks differ
        entries = [self._entry(rank, own, began, place) for place in range(len(self.issued[rank]))]
        issued = Counter(group for group, _ in self.issued[rank])
        ended = Counter(group for group, number in self.issued[rank] if self._has_ended(group, number))
        return {
            "version": "2.10",
            "comm_lib_version": "",
            "pg_config": {name: {"name": name, "desc": _desc(name), "ranks": str(self.groups[name])} for name in own},
            "pg_status": {
                str(number): {
                    **{"last_enqueued_collective": issued[name], "last_started_collective": -1},
                    "last_completed_collective": ended[name],
                }
                for number, name in enumerate(own)
            },
            "entries": entries[-KEPT:],  # the recorder is a ring
        }

    def _entry(self, rank: int, own: list[str], began: int, place: int) -> dict[str, Any]:
        group, number = self.issued[rank][place]
        call, has_ended = self.calls[group, number][rank], self._has_ended(group, number)
        is_last = (group, number) == self.issued[rank][-1]
        frames = [
            *((f"{TORCH}distributed_c10d.py", 3906, call.operation), (f"{TORCH}c10d_logger.py", 83, "wrapper")),
            *((*call.place, "step"), ("/home/ada/job/train.py", 402, "<module>")),
        ]
        return {
            **{"record_id": place, "op_id": number, "pg_id": own.index(group), "process_group": (group, _desc(group))},
            **{"collective_seq_id": number, "p2p_seq_id": 0, "is_p2p": False},
            "profiling_name": f"{'nccl' if self.is_nccl else 'gloo'}:{call.operation}",
            **{"input_sizes": call.sizes, "output_sizes": call.sizes},
            **{"input_dtypes": ["Float"] * len(call.sizes), "output_dtypes": ["Float"] * len(call.sizes)},
            # gloo does not tell torch how far it is. What NCCL has just completed is not retired yet.
            "state": "scheduled" if not self.is_nccl else "completed" if has_ended else "started",
            "retired": has_ended and not (self.is_nccl and is_last),
            **{"time_created_ns": began + place * 10**7, "timeout_ms": 600_000},
            **{"time_discovered_started_ns": None, "time_discovered_completed_ns": None},
            **{"thread_id": "140694085450624", "thread_name": "python"},
            "frames": [{"filename": file, "line": line, "name": name} for file, line, name in frames],
        }


def _desc(group: str) -> str:
    return "default_pg" if group == "0" else "undefined"


def main() -> None:
    chance, wrong = random.Random(), Counter()  # no two runs have the same answers
    for kind, is_nccl in [*product(KINDS, (False, True))] * 2:
        job = Job(chance, kind, is_nccl=is_nccl)
        found = Finding(*diagnose(pickle.loads(pickle.dumps(job.dumps()))))
        wrong["ranks"] += sorted(found.ranks) != job.wanted.ranks
        wrong["collectives"] += found[1:3] != job.wanted[1:3]
        wrong["lines"] += found[3:] != job.wanted[3:]
        if found != job.wanted:
            print(f"{kind}, {'NCCL' if is_nccl else 'gloo'}: found {found}, wanted {job.wanted}", flush=True)
    report(wrong_ranks=wrong["ranks"], wrong_collectives=wrong["collectives"], wrong_lines=wrong["lines"])


if __name__ == "__main__":
    main()
