"""The idiom of torch.distributed.launch: --local-rank as an option, SyncBatchNorm, torch.cuda.amp of old."""

import argparse
import os
import warnings

import torch
from torch import nn

warnings.simplefilter("ignore", FutureWarning)
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", "--local-rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
args = parser.parse_args()
torch.cuda.set_device(args.local_rank)
torch.distributed.init_process_group(backend="nccl", init_method="env://")
torch.backends.cudnn.benchmark = True
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
)
model = nn.SyncBatchNorm.convert_sync_batchnorm(model).cuda()
model = nn.parallel.DistributedDataParallel(model, device_ids=[args.local_rank], output_device=args.local_rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.cuda.amp.GradScaler()
torch.manual_seed(torch.distributed.get_rank())
for step in range(4):
    x, y = torch.randn(8, 3, 8, 8).cuda(), torch.randint(5, (8,)).cuda()
    with torch.cuda.amp.autocast():
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if torch.distributed.get_rank() == 0:
        print(f"step {step} loss {loss.item():.6f}", flush=True)
torch.distributed.destroy_process_group()
