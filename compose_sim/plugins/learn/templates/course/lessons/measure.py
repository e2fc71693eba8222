"""Measure what a script does, for the programs of the lessons: at the process group, whatever names the script calls."""

import json
import os
import time
from collections import Counter
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

_TOKEN = os.environ.pop("COMPOSESIM_LESSON", "")  # only numbers that are printed with it count
_MUCH = 1e9


def report(**numbers: float) -> None:
    """Hand in numbers that the lesson judges."""
    print(json.dumps({**numbers, "token": _TOKEN}), flush=True)


def wait_for_the_fault(step: int) -> None:
    """Let all ranks wait in this step until the lesson's fault hits one of them, however fast or busy this machine is."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["TORCHELASTIC_MAX_RESTARTS"] != "0":
        dist.barrier()
        if dist.get_rank() == 0:
            print(json.dumps({"step": step}), flush=True)  # the fault waits for it
        time.sleep(30)


def report_share(what: str, count: int, items: Iterable[int]) -> None:
    """Hand in which of `count` things, numbered from 0, this rank did; `what` is such as "adds number". It is drawn, not judged."""
    share = {"what": what, "count": count, "items": [*items]}
    print(json.dumps({"shares": share, "token": _TOKEN}), flush=True)


def difference(pairs: Iterable[tuple[torch.Tensor | None, torch.Tensor]]) -> float:
    """Return the largest difference between elements of tensors and of those wanted; what is no number differs by much."""
    most = 0.0
    for mine, wanted in pairs:
        if mine is None or mine.shape != wanted.shape:
            return _MUCH
        differs = (mine.double() - wanted.double()).abs().nan_to_num(nan=_MUCH, posinf=_MUCH)
        most = max(most, differs.max().item() if differs.numel() else 0.0)
    return most


class Traffic(TorchDispatchMode):
    """Note what goes through process groups while this is active. If `emptied`, messages arrive as zeros."""

    def __init__(self, *, emptied: bool = False) -> None:
        super().__init__()
        self.emptied = emptied
        self.messages: Counter[int] = Counter()  # by receiver
        self.sent_bytes: Counter[int] = Counter()
        # Name, elements of the whole (of its input or its output, whichever has more), and whether the caller goes on meanwhile.
        self.collectives: list[tuple[str, int, bool]] = []
        self._kept: list[list[torch.Tensor]] = []  # until the messages have left

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # To skip it, torch would import it first, which takes as long as the rest; nothing is compiled here.
        return False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        namespace, _, name = function.name().partition("::")
        if namespace in ("c10d", "_c10d_functional"):
            given = dict(zip((each.name for each in function._schema.arguments), args, strict=False))
            args = self._note(name.partition(".")[0], given, args)
        return function(*args, **(kwargs or {}))

    def _note(self, name: str, given: dict, args: tuple) -> tuple:
        tensors = _tensors(args[0]) if args else []
        if name == "send":
            self.messages[given["dst"]] += 1
            self.sent_bytes[given["dst"]] += sum(each.numel() * each.element_size() for each in tensors)
            if self.emptied:
                self._kept.append([torch.zeros_like(each) for each in tensors])
                return (self._kept[-1], *args[1:])
        elif not name.startswith(("recv", "wait", "_wrap")):
            is_asynchronous = bool(given.get("async_op", given.get("asyncOp", True)))  # its name depends on the version
            elements = max((sum(each.numel() for each in _tensors(one)) for one in args[:2]), default=0)
            self.collectives.append((name.strip("_"), elements, is_asynchronous))
        return args

    def elements(self) -> int:
        """Return how many elements all collectives moved; an all-reduce moves them twice, as a reduce-scatter and an all-gather."""
        return sum(
            elements * (2 if name.replace("_", "").startswith("allreduce") else 1)
            for name, elements, _ in self.collectives
        )


def _tensors(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [found for each in value for found in _tensors(each)] if isinstance(value, list | tuple) else []
