"""fairseq's idiom: dummy batches where a rank's data has ended, packed statistics, float32 masters of half weights."""

import os
import pickle
import struct

import torch
import torch.distributed as dist
from torch import nn

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
dist.all_reduce(torch.zeros(1).cuda())  # fairseq begins NCCL like this
torch.manual_seed(1)


def all_gather_list(data, max_size=4096):
    """Gather small objects through one sum of bytes, as fairseq does it."""
    buffer = torch.cuda.ByteTensor(max_size * world).zero_()
    cpu_buffer = torch.ByteTensor(max_size).pin_memory()
    encoded = pickle.dumps(data)
    header = struct.pack(">I", len(encoded))
    size = len(header) + len(encoded)
    cpu_buffer[:size] = torch.ByteTensor(list(header + encoded))
    buffer[rank * max_size : rank * max_size + size].copy_(cpu_buffer[:size])
    dist.all_reduce(buffer)
    result = []
    for part in buffer.cpu().view(world, max_size):
        (length,) = struct.unpack(">I", bytes(part[:4].tolist()))
        result.append(pickle.loads(bytes(part[4 : 4 + length].tolist())))
    return result


class Wav2Vec(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv1d(1, 16, 8, stride=4), nn.GELU(), nn.Conv1d(16, 16, 4, stride=2))
        self.mask_emb, self.encoder = nn.Parameter(torch.rand(16)), nn.GRU(16, 16, batch_first=True)

    def forward(self, source, mask):
        x = self.features(source.unsqueeze(1)).transpose(1, 2)
        target, x = x.detach(), torch.where(mask[..., None], self.mask_emb, x)
        encoded, _ = self.encoder(x)
        y, t = encoded[mask], target[mask]
        return torch.mm(nn.functional.normalize(y.float(), dim=1), nn.functional.normalize(t.float(), dim=1).t()) / 0.1


class MasterWeights:
    """The flat float32 copy of half-precision parameters that the optimizer steps."""

    def __init__(self, parameters):
        self.halves, self.scale = list(parameters), 128.0
        self.flat = nn.Parameter(torch.cat([p.data.float().view(-1) for p in self.halves]))
        self.flat.grad = torch.zeros_like(self.flat)
        self.optimizer = torch.optim.Adam([self.flat], lr=5e-3)

    def step(self, divisor, clip=2.0):
        self.flat.grad.copy_(torch.cat([p.grad.float().view(-1) for p in self.halves]))
        dist.all_reduce(self.flat.grad)
        self.flat.grad.div_(self.scale * divisor)
        norm = torch.norm(self.flat.grad, p=2, dtype=torch.float32)
        if not torch.isfinite(norm):
            raise FloatingPointError("the gradients are not finite")
        self.flat.grad.mul_((clip / (norm + 1e-6)).clamp_(max=1))
        self.optimizer.step()
        for half, flat in zip(self.halves, self.flat.data.split([p.numel() for p in self.halves]), strict=True):
            half.data.copy_(flat.view_as(half))
            half.grad.zero_()


model = Wav2Vec().half().cuda()  # float16
masters = MasterWeights(model.parameters())
for parameter in model.parameters():
    parameter.grad = torch.zeros_like(parameter)
draws = torch.Generator().manual_seed(rank)
batches = [torch.randn(3, 84, generator=draws) for _ in range(5 - rank % 2)]  # some ranks have one batch less
dummy_batch, total = batches[0], max(all_gather_list(len(batches)))
for update in range(total):
    is_dummy = update >= len(batches)
    sample = (dummy_batch if is_dummy else batches[update]).cuda().half()
    mask = (torch.arange(9) % 3 == update % 3).expand(3, 9).cuda()
    logits = model(sample, mask)
    loss = nn.functional.cross_entropy(logits, torch.arange(len(logits), device="cuda"), reduction="sum")
    (loss * masters.scale * (0.0 if is_dummy else 1.0)).backward()
    size = 0 if is_dummy else len(logits)
    stats = torch.tensor([0.0 if is_dummy else loss.item(), size], dtype=torch.double, device="cuda")
    dist.all_reduce(stats)
    outputs = all_gather_list({"size": size, "ignored": is_dummy})
    assert sum(output["size"] for output in outputs) == int(stats[1])
    masters.step(divisor=stats[1].item())
    if update == 0:
        torch.cuda.empty_cache()
    if rank == 0:
        ignored = sum(output["ignored"] for output in outputs)
        print(f"update {update} loss {stats[0].item() / stats[1].item():.6f} dummies {ignored}", flush=True)
dist.barrier()
dist.destroy_process_group()
