"""Scripts that resume rightly, and changes to them after which they do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).with_name("scripts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A script, or a wrong twin of it: `changes` replaces text, and `missing` is the state that is then missing, if any."""

    name: str
    script: str
    missing: str = ""
    changes: tuple[tuple[str, str], ...] = ()
    options: tuple[str, ...] = ()


def write(pair: Pair, folder: Path, scripts: Path = SCRIPTS) -> Path:
    """Write the script into a folder; each text that is replaced must be there."""
    text = (scripts / pair.script).read_text()
    for old, new in pair.changes:
        assert old in text, old
        text = text.replace(old, new)
    path = folder / pair.script
    path.write_text(text)
    return path


def wrong(script: str, missing: str, *changes: tuple[str, str], name: str = "", options: tuple[str, ...] = ()) -> Pair:
    """Return a wrong twin of a script."""
    name = f"{script[:-3]}-{name or missing}"
    return Pair(name=name, script=script, missing=missing, changes=changes, options=options)


PAIRS = (
    Pair(name="ddp", script="ddp.py"),
    Pair(
        name="ddp-after-a-trial",
        script="ddp.py",
        changes=(
            (
                "    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)\n",
                "    next(model.parameters()).square().sum().backward()\n    model.zero_grad()\n"
                "    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)\n",
            ),
        ),
    ),
    Pair(
        name="ddp-skips-by-a-subset",
        script="ddp.py",
        changes=(
            ("DistributedSampler, TensorDataset", "DistributedSampler, Subset, TensorDataset"),
            (
                "        batches = iter(loader)\n",
                "        batches = iter(DataLoader(Subset(data, [*sampler][4 * first :]), batch_size=4))\n",
            ),
            ("            if number < first:\n                continue\n", ""),
        ),
    ),
    wrong("ddp.py", "optimizer", ('        optimizer.load_state_dict(state["optimizer"])\n', "")),
    wrong(
        "ddp.py",
        "optimizer",
        (
            "    first = step % len(loader)\n",
            "    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)\n    scheduler.optimizer = optimizer\n"
            "    optimizer.param_groups[0].update(lr=scheduler.get_last_lr()[0], initial_lr=0.01)\n    first = step % len(loader)\n",
        ),
        name="made-after-loading",
    ),
    wrong("ddp.py", "scheduler", ('        scheduler.load_state_dict(state["scheduler"])\n', "")),
    wrong(
        "ddp.py",
        "average",
        (
            '        average = state["average"]\n',
            "        average = {n: v.detach().clone() for n, v in model.module.named_parameters()}\n",
        ),
    ),
    wrong("ddp.py", "random", ('        torch.set_rng_state(own["torch"])\n', "")),
    wrong("ddp.py", "random", ('        random.setstate(own["python"])\n', ""), name="random-of-python"),
    wrong("ddp.py", "random-of-rank-0", ('f"random-{rank}.pt", weights_only', '"random-0.pt", weights_only')),
    wrong("ddp.py", "sampler-position", ("    first = step % len(loader)\n", "    first = 0\n")),
    wrong(
        "ddp.py",
        "sampler-epoch",
        ("    first = step % len(loader)\n", "    first = step % len(loader)\n    begun = step // len(loader)\n"),
        ("sampler.set_epoch(epoch)", "sampler.set_epoch(epoch - begun)"),
        ("EPOCHS, EVERY = 3, 5", "EPOCHS, EVERY = 3, 10"),
    ),
    wrong("ddp.py", "off-by-one", ('            "step": step,\n', '            "step": step + 1,\n')),
    Pair(name="by_epoch", script="by_epoch.py"),
    wrong("by_epoch.py", "random", ('        torch.set_rng_state(torch.load(path / f"random-{rank}.pt"))\n', "")),
    wrong(
        "by_epoch.py",
        "buffers",
        (
            'model.module.load_state_dict(state["model"])',
            'model.module.load_state_dict({n: v for n, v in state["model"].items() if "running" not in n}, strict=False)',
        ),
    ),
    wrong("by_epoch.py", "optimizer", ('        optimizer.load_state_dict(state["optimizer"])\n', "")),
    Pair(name="accumulating", script="accumulating.py"),
    Pair(
        name="accumulating-with-skipped-steps",
        script="accumulating.py",
        changes=(("init_scale=1024.0", "init_scale=2.0**126"),),
    ),
    wrong("accumulating.py", "scaler", ('        scaler.load_state_dict(state["scaler"])\n', "")),
    wrong("accumulating.py", "accumulation", ("EVERY = 4, 16, 16", "EVERY = 4, 16, 18")),
    Pair(name="sharded", script="sharded.py"),
    wrong("sharded.py", "optimizer", ('    optimizer.load_state_dict(state["optimizer"])\n', "")),
    wrong("sharded.py", "older-checkpoint", (", key=int)", ")")),
    wrong("sharded.py", "shards", ('step_{steps[-1]}-{dist.get_rank()}.pt"', 'step_{steps[-1]}-0.pt"')),
    Pair(name="numbered", script="numbered.py"),
    wrong(
        "numbered.py",
        "older-checkpoint",
        ("key=number_of)", "key=lambda path: path.stat().st_mtime)"),
        name="time-stamp",
        options=("--interrupt", "sigkill"),
    ),
    wrong(
        "numbered.py",
        "emergency-checkpoint",
        ("    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n", "    signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"),
    ),
    wrong(
        "numbered.py",
        "off-by-one",
        ("                save(model, optimizer, step)", "                save(model, optimizer, step + 1)"),
        name="named-one-later",
        options=("--interrupt", "sigkill"),
    ),
    wrong(
        "numbered.py",
        "random",
        (
            "    data = TensorDataset(torch.randn(96, 8), torch.randn(96, 1))\n",
            '    names = list({f"file-{number}" for number in range(96)})\n'
            "    inputs = torch.tensor([[float(ord(letter)) for letter in name.ljust(8)] for name in names]) / 100\n"
            "    data = TensorDataset(inputs, torch.randn(96, 1))\n",
        ),
        name="order-of-a-set",
    ),
    wrong(
        "numbered.py",
        "emergency-checkpoint",
        ("num_workers=1, worker_init_fn=lambda _: ignore())", "num_workers=2, persistent_workers=True)"),
        name="two-workers",
    ),
    Pair(name="numbered-killed-while-saving", script="numbered.py", options=("--mid-save",)),
    wrong(
        "numbered.py",
        "restart-failed",
        ('    new = SHARED / "unfinished"\n', '    new = SHARED / f"step_{step}.pkl"\n'),
        ('    new.replace(SHARED / f"step_{step}.pkl")\n', ""),
        options=("--mid-save",),
    ),
    Pair(name="drawing", script="drawing.py"),
    wrong("drawing.py", "random", ('    torch.set_rng_state(state["random"][rank])\n', "")),
    wrong("drawing.py", "random-of-rank-0", ('state["random"][rank]', 'state["random"][0]')),
    wrong("drawing.py", "not-resumed", ("if arguments.resume:", "if False:")),
    Pair(name="by-hand", script="by_hand.py"),
    wrong("by_hand.py", "optimizer", ('    momentum.velocity = state["velocity"]\n', "")),
    wrong("by_hand.py", "off-by-one", ('    first = state["step"]\n', '    first = state["step"] - 1\n')),
    wrong(
        "sharded.py",
        "shards",
        (
            '    state = {"model": model.state_dict(), ',
            '    local = {name: each.to_local() for name, each in model.state_dict().items()}\n    state = {"model": local, ',
        ),
        (
            "    torch.save(state, ",
            "    if dist.get_rank() == 0:\n        torch.save(state, ",
        ),
        (
            'step_{steps[-1]}-{dist.get_rank()}.pt", weights_only=False)\n    model.load_state_dict(state["model"])\n',
            'step_{steps[-1]}-0.pt", weights_only=False)\n    for name, each in model.state_dict().items():\n'
            '        each.to_local().copy_(state["model"][name])\n',
        ),
        name="local-of-rank-0",
    ),
    wrong(
        "drawing.py",
        "scheduler",
        ("while step < 14:\n", "begun = step\nwhile step < 14:\n"),
        ("(step + 1) / 8)", "(step - begun + 1) / 8)"),
        name="warm-up-again",
    ),
    Pair(name="distributed-checkpoint", script="distributed_checkpoint.py"),
    wrong(
        "distributed_checkpoint.py",
        "optimizer",
        (
            '    state = {"model": parameters, "optimizer": moments, "step": 0}\n',
            '    state = {"model": parameters, "step": 0}\n',
        ),
        ('    set_optimizer_state_dict(model, optimizer, state["optimizer"])\n', ""),
    ),
    Pair(name="distributed-checkpoint-4-to-2", script="distributed_checkpoint.py", options=("--world", "4:2")),
    wrong(
        "distributed_checkpoint.py",
        "optimizer",
        (
            '    state = {"model": parameters, "optimizer": moments, "step": 0}\n',
            '    state = {"model": parameters, "step": 0}\n',
        ),
        ('    set_optimizer_state_dict(model, optimizer, state["optimizer"])\n', ""),
        name="optimizer-2-to-4",
        options=("--world", "2:4"),
    ),
    Pair(name="asynchronous", script="asynchronous.py"),
    Pair(name="asynchronous-killed-while-saving", script="asynchronous.py", options=("--mid-save",)),
    wrong(
        "asynchronous.py",
        "restart-failed",
        ("                saving.result()\n                publish(folder)\n", "                saving.result()\n"),
        ("process_group=of_savers)\n", "process_group=of_savers)\n            publish(folder)\n"),
        options=("--mid-save",),
    ),
    wrong("asynchronous.py", "off-by-one", ('moments, "step": step}', 'moments, "step": step - 1}')),
    Pair(name="safe-tensors", script="safe_tensors.py"),
    wrong(
        "safe_tensors.py",
        "buffers",
        ("save_file(model.module.state_dict(), ", "save_file(dict(model.module.named_parameters()), "),
        ('"model.safetensors"))', '"model.safetensors"), strict=False)'),
    ),
    wrong(
        "safe_tensors.py",
        "optimizer",
        ('        optimizer.load_state_dict(rest["optimizer"])\n', ""),
    ),
    Pair(name="zero-redundancy", script="zero_redundancy.py"),
    wrong("zero_redundancy.py", "optimizer", ('        optimizer.load_state_dict(state["optimizer"])\n', "")),
    wrong(
        "zero_redundancy.py",
        "optimizer",
        (
            '        optimizer.load_state_dict(state["optimizer"])\n',
            '        if rank == 0:\n            optimizer.load_state_dict(state["optimizer"])\n',
        ),
        name="optimizer-on-rank-0",
    ),
    Pair(name="stream", script="stream.py"),
    wrong("stream.py", "sampler-position", ("Stream(**stream)", 'Stream(**{**stream, "used": 0})')),
    wrong(
        "stream.py", "sampler-rank", ('torch.load(SHARED / f"stream-{rank}.pt")', 'torch.load(SHARED / "stream-0.pt")')
    ),
    Pair(name="lines-killed-while-saving", script="lines.py", options=("--mid-save",)),
    wrong(
        "lines.py",
        "parameters",
        ('    new = PATH.with_suffix(".new")\n', "    new = PATH\n"),
        options=("--mid-save",),
    ),
    Pair(name="other-size-4-to-2", script="other_size.py", options=("--world", "4:2")),
    Pair(name="other-size-2-to-4", script="other_size.py", options=("--world", "2:4")),
    wrong(
        "other_size.py",
        "sampler-position",
        (
            "save(model, optimizer, epoch, used)\n        used",
            "save(model, optimizer, epoch, used // world_size)\n        used",
        ),
        ('state["epoch"], state["used"]\n', 'state["epoch"], state["used"] * world_size\n'),
        options=("--world", "4:2"),
    ),
)


def with_marks(pairs: Sequence[Pair], key: Callable[[Pair], str]) -> list[Any]:
    """Return the pairs for pytest, of which `make test` runs the first of each key, and `make exhaustive` the others."""
    seen: set[str] = set()
    found = []
    for each in pairs:
        marks = [pytest.mark.exhaustive] if key(each) in seen else []
        seen.add(key(each))
        found.append(pytest.param(each, id=each.name, marks=marks))
    return found
