"""Lines of a script that are often wrong, found before it runs."""

from __future__ import annotations

import pytest

from compose_sim.core.checks.source import JUDGED_BY, cut_rows, early_reads, find_hints, imported_names, uses_hashes
from tests.builders import ROOT


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("DataLoader(data, shuffle=True, sampler=sampler)", [1]),
        ("DataLoader(data, shuffle=True)\nDataLoader(data, shuffle=True, sampler=None)", []),
        ("if dist.get_rank() == 0:\n    dist.all_reduce(loss)", [2]),
        ("if accelerator.is_main_process:\n    dist.barrier()", [2]),
        ("if rank == 0 and step % 10 == 0:\n    dist.barrier()", [2]),
        ("if accelerator.is_main_process:\n    loss = accelerator.gather(loss)", [2]),
        ("if trainer.is_global_zero:\n    fabric.all_reduce(loss)", [2]),
        (
            "if accelerator.is_main_process:\n    load()\n    accelerator.wait_for_everyone()\n"
            "if not accelerator.is_main_process:\n    accelerator.wait_for_everyone()\n    load()",
            [],
        ),
        ("if rank == 0 or step % 10 == 0:\n    dist.barrier()", []),
        ("if rank == 0:\n    dist.broadcast(a, 0)\nelse:\n    dist.broadcast(b, 0)", []),
        ("if rank == 0:\n    dist.send(a, 1)\n    dist.all_reduce(a, group=first)", []),
        ("if local_rank != 0:\n    dist.barrier()\nload()\nif local_rank == 0:\n    dist.barrier()", []),
        ("if rank in members:\n    dist.all_reduce(a)\nif world_size == 1:\n    dist.barrier()", []),
        ("model.cuda()\ntorch.cuda.set_device(local_rank)", [1]),
        ("torch.cuda.set_device(local_rank)\nmodel.cuda()\nmodel.to('cuda')", []),
        ("sampler = DistributedSampler(data)", [1]),
        ("sampler = DistributedSampler(data)\nsampler.set_epoch(epoch)", []),
        ("sampler = DistributedSampler(data, shuffle=False)", []),
        ("import lightning.pytorch as pl\nsampler = DistributedSampler(data)", []),
        (
            "torch.load(path).cuda()\ntorch.load(path, 'cpu')\ntorch.load(path, map_location='cpu')\njson.load(file)",
            [1],
        ),
        ("torch.load(path)", []),
        ("{name: i for i, name in enumerate(set(names))}\nenumerate(sorted(set(names)))", [1]),
        ("no Python", []),
        ("x = " + "-" * 200_000 + "1", []),  # on which Python's parser fails with MemoryError
        ("if rank" + "+1" * 500 + " == 0:\n    dist.barrier()", []),
    ],
)
def test_lines_to_look_at(source: str, lines: list[int]) -> None:
    assert [hint.place.line for hint in find_hints({"train.py": source})] == lines


CLIPS = """
def clip(parameters, limit):
    shards = [each.grad.to_local() for each in parameters]
    total = torch.stack([each.norm() for each in shards]).norm()
    {}
    for each in shards:
        each.mul_((limit / total).clamp(max=1))
"""


@pytest.mark.parametrize(
    ("reduces", "lines"), [("pass", [3]), ("dist.all_reduce(total)", []), ("total = reduced(total).full_tensor()", [])]
)
def test_a_norm_of_shards_is_noted_unless_it_is_reduced(reduces: str, lines: list[int]) -> None:
    assert [hint.place.line for hint in find_hints({"train.py": CLIPS.format(reduces)})] == lines


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("names = list(set(names))", True),
        ("for name in {each.parent for each in files}: pass", True),
        ("seed = hash(name) % 1000", True),
        ("store.set('own', 1)\nif name in {'a', 'b'}: hashlib.md5(name)", False),
        ("no Python", False),
    ],
)
def test_a_script_whose_ranks_need_hashes_of_their_own(source: str, expected: bool) -> None:
    assert uses_hashes({"train.py": source}) is expected


def test_an_epoch_may_be_set_in_another_file() -> None:
    sources = {"train.py": "DistributedSampler(data)", "loop.py": "sampler.set_epoch(epoch)"}

    assert not find_hints(sources)


def test_imports_are_those_of_the_text() -> None:
    assert imported_names("import a.b\nfrom c import d\nfrom . import e") == ["a.b", "c", "c.d", "e"]


@pytest.mark.parametrize("name", ["train_ddp.py", "templates/init/train.py"])
def test_our_own_templates_have_none(name: str) -> None:
    assert not find_hints({name: (ROOT / name).read_text()})


def test_a_hint_about_set_epoch_yields_to_the_check_that_saw_the_run() -> None:
    (hint,) = find_hints({"train.py": "sampler = DistributedSampler(data)"})

    assert JUDGED_BY[hint.text] == "set-epoch"


@pytest.mark.parametrize(
    ("source", "used_in"),
    [
        ("work = dist.irecv(x, src=0)\ny = x.clone()\nwork.wait()", 2),
        ("work = dist.all_reduce(x.grad, async_op=True)\nx.grad /= world\nwork.wait()", 2),
        ("dist.all_reduce(total, async_op=True)\nprint(total.item())", 2),
        ("for p in ps:\n    work = dist.all_reduce(p, async_op=True)\n    torch.add(p, 1)\n    work.wait()", 3),
        ("if here:\n    self.work = dist.irecv(self.x, 0)\n    y = self.x + 1", 3),
        ("work = dist.irecv(x, src=0)\nwork.wait()\ny = x + 1", None),
        ("work = dist.irecv(x, src=0)\nother = y.clone()\nshape = x.shape\nparts.append(x)\nwork.wait()", None),
        ("works.append(dist.irecv(x, src=0))\nfor work in works:\n    work.wait()\ny = x + 1", None),
        ("work = dist.irecv(x[0], src=0)\ny = x[1] + 1\nwork.wait()", None),
        ("work = dist.all_reduce(x, async_op=False)\ny = x + 1", None),
        ("work = dist.irecv(x, src=0)\nx, y = y, x\nz = x + 1\nwork.wait()", None),
        ("work = dist.irecv(x, src=0)\nfinish(work)\ny = x + 1", None),
        ("work = dist.broadcast(x, 0, async_op=True)\ny = x + 1", None),
        ("work = dist.gather(x, parts, async_op=True)\ny = x + 1", None),
        ("work = comm.all_reduce(x, async_op=True)\ny = x + 1", None),
        ("work = dist.irecv(x, 0)\nspare = torch.zeros_like(x)\nx.requires_grad_()\nwork.wait()", None),
        ("self.work = dist.all_reduce(self.x, async_op=True)\nself.finish()\nself.x.div_(2)", None),
        ("def drain():\n    work.wait()\nwork = dist.all_reduce(x, async_op=True)\ndrain()\ny = x + 1", None),
        ("work = dist.irecv(x[i], 0)\nfor i in range(9):\n    y = x[i] * 2\nwork.wait()", None),
        ("work = dist.irecv(parts[i], 0)\ni, j = j, i\ny = parts[i] * 2\nwork.wait()", None),
        ("dist.all_reduce(x, async_op=True)\ntorch.cuda.synchronize()\ny = x + 1", None),
    ],
)
def test_a_tensor_that_is_used_before_the_wait_is_found(source: str, used_in: int | None) -> None:
    assert [each.used_in for each in early_reads({"train.py": source})] == [used_in] * (used_in is not None)


@pytest.mark.parametrize(
    ("lines", "cut_in"),
    [
        (["return torch.cat(parts)[:count]"], 4),
        (["joined = torch.cat(parts, dim=0)", "return joined[:len(data)]"], 5),
        (["return np.concatenate(parts)[:self.count]"], 4),
        (["return torch.cat(parts, dim=1)[:count]"], None),  # columns
        (["return torch.stack(parts, dim=1).flatten(0, 1)[:count]"], None),
        (["joined = torch.cat(parts)", "joined = joined[order]", "return joined[:count]"], None),
        (["parts = [parts[each] for each in order]", "return torch.cat(parts)[:count]"], None),
        (["return torch.cat(parts)[:10]"], None),  # the first few, to show them
        (["return torch.cat(parts)[count:]"], None),
        (["return torch.cat(others)[:count]"], None),
    ],
)
def test_rows_of_ranks_that_are_joined_and_cut(lines: list[str], cut_in: int | None) -> None:
    source = "\n    ".join(
        [
            "def gathered(own):",
            "parts = [torch.empty_like(own) for _ in range(4)]",
            "dist.all_gather(parts, own)",
            *lines,
        ]
    )

    assert [each.cut_in for each in cut_rows({"train.py": source})] == [cut_in] * (cut_in is not None)
