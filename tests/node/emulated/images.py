"""Image classification like an old reference script: meters, top-k accuracy, workers, a checkpoint to resume from."""

import argparse
import os
import time

import torch
import torch.backends.cudnn as cudnn
import torch.distributed as dist
import torch.nn as nn
import torch.optim
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

best_acc1 = 0


class Images(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 16, 16, generator=generator), index % 5


class AverageMeter:
    def __init__(self, name):
        self.name, self.sum, self.count, self.avg = name, 0.0, 0, 0.0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n
        self.avg = self.sum / self.count

    def all_reduce(self):
        device = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else torch.device("cuda")
        total = torch.tensor([self.sum, self.count], dtype=torch.float32, device=device)
        dist.all_reduce(total, dist.ReduceOp.SUM, async_op=False)
        self.sum, self.count = total.tolist()
        self.avg = self.sum / self.count


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
        return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / target.size(0)) for k in topk]


def train(loader, model, criterion, optimizer, epoch, device, args):
    batch_time, losses, top1 = AverageMeter("Time"), AverageMeter("Loss"), AverageMeter("Acc@1")
    model.train()
    end = time.time()
    for images, target in loader:
        images = images.to(device, non_blocking=True)
        target = target.to(device, non_blocking=True)
        output = model(images)
        loss = criterion(output, target)
        acc1, _ = accuracy(output, target, topk=(1, 5))
        losses.update(loss.item(), images.size(0))
        top1.update(acc1[0].item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batch_time.update(time.time() - end)
        end = time.time()
    if args.rank == 0:
        print(f"Epoch: [{epoch}] loss {losses.avg:.6f} Acc@1 {top1.avg:6.2f}", flush=True)


def validate(loader, model, criterion, args):
    losses, top1 = AverageMeter("Loss"), AverageMeter("Acc@1")
    model.eval()
    with torch.no_grad():
        for images, target in loader:
            if args.gpu is not None and torch.cuda.is_available():
                images = images.cuda(args.gpu, non_blocking=True)
                target = target.cuda(args.gpu, non_blocking=True)
            output = model(images)
            losses.update(criterion(output, target).item(), images.size(0))
            top1.update(accuracy(output, target)[0][0].item(), images.size(0))
    top1.all_reduce()
    losses.all_reduce()
    return top1.avg


def main():
    global best_acc1
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", default=2, type=int)
    parser.add_argument("--resume", default="")
    parser.add_argument("--checkpoint", default="checkpoint.pth.tar")
    parser.add_argument("--dist-backend", default="nccl")
    args = parser.parse_args()
    args.gpu = int(os.environ["LOCAL_RANK"])
    args.rank = int(os.environ["RANK"])
    dist.init_process_group(backend=args.dist_backend, init_method="env://")
    torch.manual_seed(1)
    cudnn.benchmark = True
    print(f"Use GPU: {args.gpu} for training")
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    torch.cuda.set_device(args.gpu)
    model.cuda(args.gpu)
    model = nn.parallel.DistributedDataParallel(model, device_ids=[args.gpu])
    device = torch.device(f"cuda:{args.gpu}")
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    start = 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location=f"cuda:{args.gpu}")
        start = checkpoint["epoch"]
        best_acc1 = checkpoint["best_acc1"].to(args.gpu)
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
    dataset = Images(96)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=2, pin_memory=True)
    test_loader = DataLoader(
        Images(32), batch_size=8, sampler=DistributedSampler(Images(32), shuffle=False), pin_memory=True
    )
    for epoch in range(start, args.epochs):
        sampler.set_epoch(epoch)
        train(loader, model, criterion, optimizer, epoch, device, args)
        acc1 = validate(test_loader, model, criterion, args)
        scheduler.step()
        best_acc1 = max(torch.as_tensor(acc1), torch.as_tensor(best_acc1).cpu())
        if args.rank == 0:
            state = {"epoch": epoch + 1, "state_dict": model.state_dict(), "best_acc1": best_acc1}
            torch.save(
                {**state, "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, args.checkpoint
            )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
