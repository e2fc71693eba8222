"""pytorch/examples' idiom: one process per GPU of this machine from mp.spawn, with a TCP address of its own."""

import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main_worker(gpu, ngpus_per_node, port):
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", world_size=ngpus_per_node, rank=gpu)
    torch.cuda.set_device(gpu)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 10))
    model.cuda(gpu)
    model = DistributedDataParallel(model, device_ids=[gpu])
    criterion = nn.CrossEntropyLoss().cuda(gpu)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    dataset = TensorDataset(torch.randn(64, 3, 4, 4), torch.randint(10, (64,)))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, pin_memory=True)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for images, target in loader:
            images = images.cuda(gpu, non_blocking=True)
            target = target.cuda(gpu, non_blocking=True)
            loss = criterion(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if gpu == 0:
            print(f"epoch {epoch} loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    count = torch.cuda.device_count()
    mp.spawn(main_worker, nprocs=count, args=(count, number))
