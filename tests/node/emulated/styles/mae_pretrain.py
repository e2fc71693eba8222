"""MAE's pre-training: masks from a generator of the device, gather and scatter of patches, a scaler with its own norm."""

import math
import os

import torch
import torch.distributed as dist
from torch import nn

gpu = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(gpu)
dist.init_process_group("nccl", init_method="env://", rank=int(os.environ["RANK"]))
dist.barrier()
device = torch.device("cuda")


class NativeScalerWithGradNormCount:
    def __init__(self):
        self._scaler = torch.cuda.amp.GradScaler(init_scale=256.0)

    def __call__(self, loss, optimizer, parameters, update_grad):
        self._scaler.scale(loss).backward()
        if not update_grad:
            return None
        self._scaler.unscale_(optimizer)
        grads = [parameter.grad.detach() for parameter in parameters if parameter.grad is not None]
        norm = torch.norm(torch.stack([torch.norm(grad, 2.0).to(grads[0].device) for grad in grads]), 2.0)
        self._scaler.step(optimizer)
        self._scaler.update()
        return norm


class MaskedAutoencoder(nn.Module):
    def __init__(self, dim=32, patches=16):
        super().__init__()
        self.patch_embed, self.norm = nn.Conv2d(3, dim, kernel_size=2, stride=2), nn.LayerNorm(dim)
        self.cls_token, self.mask_token = nn.Parameter(torch.zeros(1, 1, dim)), nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.randn(1, patches + 1, dim) * 0.02, requires_grad=False)
        self.encoder, self.decoder = (
            nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.pred = nn.Linear(dim, 12)

    def patchify(self, images):
        x = images.reshape(images.shape[0], 3, 4, 2, 4, 2)
        return torch.einsum("nchpwq->nhwpqc", x).reshape(images.shape[0], 16, 12)

    def random_masking(self, x, noise, ratio=0.75):
        batch, length, dim = x.shape
        keep = int(length * (1 - ratio))
        ids_shuffle = torch.argsort(noise, dim=1)
        ids_restore = torch.argsort(ids_shuffle, dim=1)
        kept = torch.gather(x, dim=1, index=ids_shuffle[:, :keep].unsqueeze(-1).repeat(1, 1, dim))
        mask = torch.ones([batch, length], device=x.device)
        mask[:, :keep] = 0
        mask = torch.gather(mask, dim=1, index=ids_restore)
        scattered = torch.ones_like(mask).scatter_(1, ids_shuffle[:, :keep], 0.0)
        assert torch.equal(mask, scattered)
        return kept, mask, ids_restore

    def forward(self, images, noise):
        x = self.patch_embed(images).flatten(2).transpose(1, 2) + self.pos_embed[:, 1:]
        x, mask, ids_restore = self.random_masking(x, noise)
        x = self.norm(self.encoder(torch.cat((self.cls_token.expand(len(x), -1, -1), x), dim=1)))
        tokens = self.mask_token.repeat(x.shape[0], ids_restore.shape[1] + 1 - x.shape[1], 1)
        x_ = torch.cat([x[:, 1:], tokens.to(x.dtype)], dim=1)
        x_ = torch.gather(x_, dim=1, index=ids_restore.unsqueeze(-1).expand(-1, -1, x.shape[2]))
        pred = self.pred(self.decoder(torch.cat([x[:, :1], x_], dim=1) + self.pos_embed))[:, 1:]
        target = self.patchify(images)
        target = (target - target.mean(dim=-1, keepdim=True)) / (target.var(dim=-1, keepdim=True) + 1e-6) ** 0.5
        return (((pred - target) ** 2).mean(dim=-1) * mask).sum() / mask.sum()


torch.manual_seed(0)
model = MaskedAutoencoder().to(device)
model = nn.parallel.DistributedDataParallel(model, device_ids=[gpu], find_unused_parameters=True)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=4e-3, betas=(0.9, 0.95))
loss_scaler = NativeScalerWithGradNormCount()
generator = torch.Generator(device="cuda").manual_seed(dist.get_rank())
state = generator.get_state()
masks = torch.rand(4, 16, device=device, generator=generator)
generator.set_state(state)
assert torch.equal(torch.rand(4, 16, device=device, generator=generator), masks)
permuted = torch.randperm(16, device=device, generator=generator)
assert torch.equal(permuted.sort().values, torch.arange(16, device=device))
draws = torch.Generator().manual_seed(dist.get_rank())  # a CPU draws other numbers from the same seed than a GPU
optimizer.zero_grad()
for iteration in range(6):
    for group in optimizer.param_groups:
        group["lr"] = 4e-3 * 0.5 * (1.0 + math.cos(math.pi * iteration / 6))
    samples = torch.rand(4, 3, 8, 8, generator=draws).to(device, non_blocking=True)
    noise = torch.rand(4, 16, generator=draws).to(device)
    with torch.cuda.amp.autocast():
        loss = model(samples, noise)
    norm = loss_scaler(loss / 2, optimizer, list(model.parameters()), update_grad=(iteration + 1) % 2 == 0)
    if norm is not None:
        assert math.isfinite(norm)
        optimizer.zero_grad()
    torch.cuda.synchronize()
    reduced = torch.tensor(loss.item()).cuda()
    dist.all_reduce(reduced)
    if dist.get_rank() == 0:
        print(f"iter {iteration} loss {reduced.item() / dist.get_world_size():.6f}", flush=True)
dist.destroy_process_group()
