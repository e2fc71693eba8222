"""diffusers' training script: a noise schedule on the device, an averaged model, bfloat16, then sampling."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}")
torch.cuda.set_device(device)
dist.init_process_group("nccl")
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.benchmark = False


def randn_tensor(shape, generator, device):
    """Draw where the generator is, as the pipelines do, so that a seed on the CPU gives the same image everywhere."""
    return torch.randn(shape, generator=generator, device=generator.device).to(device)


class DDPMScheduler:
    def __init__(self, steps=20):
        self.alphas_cumprod = torch.cumprod(1.0 - torch.linspace(1e-3, 0.2, steps), dim=0)
        self.steps = steps

    def add_noise(self, sample, noise, timesteps):
        self.alphas_cumprod = self.alphas_cumprod.to(device=sample.device)
        alphas = self.alphas_cumprod.to(dtype=sample.dtype)[timesteps].flatten()
        while alphas.ndim < sample.ndim:
            alphas = alphas.unsqueeze(-1)
        return alphas.sqrt() * sample + (1 - alphas).sqrt() * noise

    def step(self, output, timestep, sample):
        now, before = self.alphas_cumprod[timestep], self.alphas_cumprod[timestep - 1]
        clean = ((sample - (1 - now).sqrt() * output) / now.sqrt()).clamp(-3, 3)
        return before.sqrt() * clean + (1 - before).sqrt() * output


class Attention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm, self.to_qkv = nn.GroupNorm(4, channels), nn.Conv2d(channels, 3 * channels, 1)

    def forward(self, x):
        batch, channels, height, width = x.shape
        q, k, v = self.to_qkv(self.norm(x)).reshape(batch, 3, 2, channels // 2, -1).transpose(-1, -2).unbind(1)
        return x + F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(batch, channels, height, width)


class UNet(nn.Module):
    def __init__(self, channels=16):
        super().__init__()
        self.conv_in, self.conv_out = nn.Conv2d(3, channels, 3, padding=1), nn.Conv2d(2 * channels, 3, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(16, channels), nn.SiLU(), nn.Linear(channels, channels))
        self.down, self.middle = nn.Conv2d(channels, channels, 3, stride=2, padding=1), Attention(channels)

    def forward(self, sample, timesteps):
        if not torch.is_tensor(timesteps):
            timesteps = torch.tensor([timesteps], dtype=torch.int64, device=sample.device)
        timesteps = timesteps.expand(sample.shape[0])
        frequencies = torch.exp(-torch.arange(8, dtype=torch.float32, device=timesteps.device))
        angles = timesteps[:, None].float() * frequencies[None]
        emb = self.time(torch.cat([angles.sin(), angles.cos()], dim=-1).to(sample.dtype))
        x = F.silu(self.conv_in(sample) + emb[:, :, None, None])
        h = checkpoint(self.middle, self.down(x), use_reentrant=False)
        return self.conv_out(torch.cat([x, F.interpolate(h, scale_factor=2.0, mode="nearest")], dim=1))


class EMAModel:
    def __init__(self, parameters, decay=0.9):
        self.shadow_params, self.decay = [p.clone().detach() for p in parameters], decay

    @torch.no_grad()
    def step(self, parameters):
        for shadow, parameter in zip(self.shadow_params, parameters, strict=True):
            shadow.sub_((1 - self.decay) * (shadow - parameter))

    def store(self, parameters):
        self.temp_stored_params = [parameter.detach().cpu().clone() for parameter in parameters]

    def copy_to(self, parameters):
        for shadow, parameter in zip(self.shadow_params, parameters, strict=True):
            parameter.data.copy_(shadow.to(parameter.device).data)

    def restore(self, parameters):
        for stored, parameter in zip(self.temp_stored_params, parameters, strict=True):
            parameter.data.copy_(stored.data)


torch.manual_seed(0)
scheduler = DDPMScheduler()
unet = UNet().to(device, memory_format=torch.channels_last)
ema = EMAModel(unet.parameters())
unet = nn.parallel.DistributedDataParallel(unet, device_ids=[device.index])
optimizer = torch.optim.AdamW(unet.parameters(), lr=2e-3, weight_decay=1e-2, foreach=True)
scaler = torch.amp.GradScaler("cuda", enabled=False)  # the script has one; bfloat16 leaves it off
generator = torch.Generator().manual_seed(dist.get_rank())
for step in range(5):
    images = torch.rand(4, 3, 8, 8, generator=generator).pin_memory().to(device, non_blocking=True) * 2 - 1
    noise = randn_tensor(images.shape, generator, device)
    timesteps = torch.randint(0, scheduler.steps, (4,), generator=generator).to(device).long()
    noisy = scheduler.add_noise(images, noise, timesteps)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        predicted = unet(noisy, timesteps)
    snr = scheduler.alphas_cumprod[timesteps] / (1 - scheduler.alphas_cumprod[timesteps])
    weights = torch.stack([snr, 5.0 * torch.ones_like(timesteps)], dim=1).min(dim=1)[0] / snr
    loss = (F.mse_loss(predicted.float(), noise, reduction="none").mean(dim=(1, 2, 3)) * weights).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    ema.step(unet.module.parameters())
    dist.all_reduce(loss := loss.detach(), op=dist.ReduceOp.AVG)
    if dist.get_rank() == 0:
        print(f"step {step} loss {loss.item():.6f}", flush=True)
ema.store(unet.module.parameters())
ema.copy_to(unet.module.parameters())
drawn = [randn_tensor((2, 3, 8, 8), torch.Generator(device).manual_seed(7), device) for _ in range(2)]
assert drawn[0].device == device
assert torch.equal(*drawn), "the same seed draws the same noise"
with torch.inference_mode(), torch.autocast("cuda", dtype=torch.bfloat16):
    sample = randn_tensor((2, 3, 8, 8), torch.Generator().manual_seed(7), device)
    for timestep in range(3, 0, -1):
        sample = scheduler.step(unet.module(sample, timestep).float(), timestep, sample)
ema.restore(unet.module.parameters())
pictures = ((sample / 2 + 0.5).clamp(0, 1).cpu().permute(0, 2, 3, 1) * 255).round().to(torch.uint8)
if dist.get_rank() == 0:
    print(f"sampled {tuple(pictures.shape)} of loss {sample.square().mean().item():.6f}", flush=True)
dist.destroy_process_group()
