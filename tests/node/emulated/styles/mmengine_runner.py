"""mmengine's idiom: registries, hooks around a runner, workers that persist and pin, results gathered as bytes."""

import os
import pickle
import random
import tempfile
import time
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler


class Registry(dict):
    def register_module(self, cls):
        self[cls.__name__] = cls
        return cls

    def build(self, cfg, **defaults):
        cfg = {**defaults, **cfg}
        return self[cfg.pop("type")](**cfg)


MODELS, DATASETS, HOOKS = Registry(), Registry(), Registry()


@DATASETS.register_module
class Shapes(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        assert not torch.cuda.is_initialized(), "workers do not use CUDA"
        draws = torch.Generator().manual_seed(index)
        return {"inputs": torch.rand(3, 8, 8, generator=draws) + index % 3, "label": index % 3, "index": index}


class InfiniteSampler(Sampler):
    def __init__(self, size, seed):
        self.size, self.seed = size, seed

    def __iter__(self):
        draws = torch.Generator().manual_seed(self.seed)
        while True:
            yield from torch.randperm(self.size, generator=draws)[dist.get_rank() :: dist.get_world_size()].tolist()


@MODELS.register_module
class Classifier(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, channels, 3), nn.BatchNorm2d(channels), nn.ReLU())
        self.head = nn.Linear(channels, 3)
        self.register_buffer("mean", torch.full((3, 1, 1), 0.5), persistent=False)

    def forward(self, inputs, label=None, mode="loss"):
        scores = self.head(self.backbone(inputs - self.mean).mean((2, 3)))
        if mode == "predict":
            return scores.argmax(1)
        return {"loss": nn.functional.cross_entropy(scores, label), "acc": (scores.argmax(1) == label).float().mean()}


@HOOKS.register_module
class IterTimerHook:
    def before_iter(self, runner):
        self.start = time.perf_counter()

    def after_iter(self, runner):
        torch.cuda.synchronize()
        runner.message["time"] = time.perf_counter() - self.start


@HOOKS.register_module
class LoggerHook:
    def after_iter(self, runner):
        memory = torch.tensor([torch.cuda.max_memory_allocated() // 1024**2], dtype=torch.int, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        dist.reduce(memory, 0, op=dist.ReduceOp.MAX)
        means = {name: value.clone() for name, value in runner.message["log_vars"].items()}
        for value in means.values():
            dist.all_reduce(value.div_(dist.get_world_size()))
        if dist.get_rank() == 0:
            print(f"Iter [{runner.iter}] loss {means['loss'].item():.6f} memory {memory.item()}", flush=True)


@HOOKS.register_module
class CheckpointHook:
    def after_iter(self, runner):
        if runner.iter == 3 and dist.get_rank() == 0:
            with tempfile.TemporaryDirectory() as folder:
                torch.save({"state_dict": runner.model.module.state_dict()}, f"{folder}/iter.pth")
                saved = torch.load(f"{folder}/iter.pth", map_location="cpu", weights_only=True)["state_dict"]
            assert "mean" not in saved
            assert all(value.device.type == "cpu" for value in saved.values())
        dist.barrier()


def worker_init_fn(worker_id, rank, seed):
    random.seed(seed + rank * 10 + worker_id)
    torch.manual_seed(seed + rank * 10 + worker_id)


def collect_results_gpu(part):
    """Gather pickled results as padded bytes on the devices."""
    data = torch.tensor(bytearray(pickle.dumps(part)), dtype=torch.uint8, device="cuda")
    sizes = [torch.zeros_like(torch.tensor(data.shape, device="cuda")) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor(data.shape, device="cuda"))
    padded = torch.zeros(max(sizes).item(), dtype=torch.uint8, device="cuda")
    padded[: len(data)] = data
    parts = [padded.new_zeros(padded.shape) for _ in sizes]
    dist.all_gather(parts, padded)
    return [pickle.loads(bytes(p[:n].cpu().tolist())) for p, n in zip(parts, sizes, strict=True)]


class Runner:
    def __init__(self, cfg):
        seed = torch.tensor(random.randrange(2**31), dtype=torch.int32, device="cuda")
        dist.broadcast(seed, src=0)
        torch.manual_seed(3)
        dataset = DATASETS.build(cfg["dataset"])
        self.loader = DataLoader(dataset, 4, sampler=InfiniteSampler(len(dataset), 3), num_workers=2, pin_memory=True,
                                 persistent_workers=True, prefetch_factor=2,
                                 worker_init_fn=partial(worker_init_fn, rank=dist.get_rank(), seed=seed.item()))  # fmt: skip
        model = MODELS.build(cfg["model"], channels=8).cuda()
        self.model = nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        self.hooks, self.message = [HOOKS.build(hook) for hook in cfg["hooks"]], {}

    def call(self, name):
        for hook in self.hooks:
            getattr(hook, name, lambda runner: None)(self)

    def train(self, iterations):
        batches = iter(self.loader)
        for self.iter in range(iterations):
            batch = next(batches)
            assert batch["inputs"].is_pinned()
            data = {name: batch[name].to("cuda", non_blocking=True) for name in ("inputs", "label")}
            self.call("before_iter")
            self.message["log_vars"] = self.model(**data)
            self.optimizer.zero_grad()
            self.message["log_vars"]["loss"].backward()
            self.optimizer.step()
            self.message["log_vars"] = {name: value.detach() for name, value in self.message["log_vars"].items()}
            self.call("after_iter")
        return collect_results_gpu({"rank": dist.get_rank(), "seen": batch["index"].tolist() * (1 + dist.get_rank())})


if __name__ == "__main__":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend="nccl")
    hooks = [{"type": name} for name in ("IterTimerHook", "LoggerHook", "CheckpointHook")]
    runner = Runner(
        {"dataset": {"type": "Shapes", "size": 24}, "model": {"type": "Classifier"}, "hooks": hooks},
    )
    assert [part["rank"] for part in runner.train(5)] == list(range(dist.get_world_size()))
    dist.destroy_process_group()
