"""A mixture with one expert per rank and a differentiable all_to_all: the wrapper leaves the experts alone."""

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 6


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, WIDTH)
        torch.manual_seed(50 + dist.get_rank())  # another expert on each rank
        self.local_expert = nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Linear(3 * WIDTH, WIDTH))

    def exchange(self, tokens: torch.Tensor) -> torch.Tensor:
        parts = [each.contiguous() for each in tokens.chunk(dist.get_world_size())]
        return torch.cat(list(torch.distributed.nn.all_to_all([torch.empty_like(each) for each in parts], parts)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        gate = torch.sigmoid(self.gate(tokens))
        return tokens + gate * self.exchange(self.local_expert(self.exchange(tokens)))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(9)
    router = Router()
    experts = [name for name, _ in router.named_parameters() if name.startswith("local_expert.")]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(router, experts)
    model = DistributedDataParallel(router)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    own = torch.Generator().manual_seed(77 + dist.get_rank())
    for _ in range(12):
        tokens = torch.randn(24, WIDTH, generator=own)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(tokens), tokens.flip(1)).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
