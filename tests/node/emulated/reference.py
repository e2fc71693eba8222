"""Training like a vision reference script: SyncBatchNorm, an averaged model, peak memory in the log, mixed precision."""

import datetime
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def init_distributed_mode():
    rank, gpu = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(gpu)
    dist.init_process_group(
        "nccl",
        init_method="env://",
        world_size=int(os.environ["WORLD_SIZE"]),
        rank=rank,
        timeout=datetime.timedelta(minutes=5),
    )
    dist.barrier()
    return rank, gpu


def reduce_across_processes(val):
    t = torch.tensor(val, device="cuda")
    dist.barrier()
    dist.all_reduce(t)
    return t


class ExponentialMovingAverage(torch.optim.swa_utils.AveragedModel):
    def __init__(self, model, decay, device="cpu"):
        def ema_avg(avg_model_param, model_param, num_averaged):
            return decay * avg_model_param + (1 - decay) * model_param

        super().__init__(model, device, ema_avg, use_buffers=True)


def main():
    rank, gpu = init_distributed_mode()
    device = torch.device("cuda")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )
    model.to(device)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    scaler = torch.cuda.amp.GradScaler()
    model = nn.parallel.DistributedDataParallel(model, device_ids=[gpu])
    ema = ExponentialMovingAverage(model.module, decay=0.9, device=device)
    torch.manual_seed(rank)
    data = TensorDataset(torch.randn(128, 3, 12, 12), torch.randint(4, (128,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 8, sampler=sampler, num_workers=1, pin_memory=True)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        model.train()
        start.record()
        for i, (image, target) in enumerate(loader):
            image, target = image.to(device), target.to(device)
            with torch.cuda.amp.autocast(enabled=True):
                loss = criterion(model(image), target)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            if i % 2 == 0:
                ema.update_parameters(model.module)
        end.record()
        torch.cuda.synchronize()
        total = reduce_across_processes(loss.item())
        megabytes = torch.cuda.max_memory_allocated() / 1024.0**2
        if rank == 0:
            print(
                f"epoch {epoch} loss {total.item():.6f} time {start.elapsed_time(end):.0f} ms max mem: {megabytes:.2f}",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
