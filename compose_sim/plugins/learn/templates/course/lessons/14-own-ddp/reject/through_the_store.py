"""Wrong: zeros travel during backward, and the gradients at the end, through the store."""

import pickle

import torch
import torch.distributed as dist
from torch import Tensor, nn


class DataParallel(nn.Module):
    def __init__(self, module: nn.Module, bucket_elements: int = 3000) -> None:
        super().__init__()
        self.module = module
        self.steps = 0
        self.running: list[dist.Work] = []
        for parameter in module.parameters():
            dist.broadcast(parameter.data, src=0)
            if parameter.dim() > 1:
                parameter.register_post_accumulate_grad_hook(self.send_zeros)

    def send_zeros(self, parameter: Tensor) -> None:
        self.running.append(dist.all_reduce(torch.zeros(parameter.numel() + 48), async_op=True))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.module(inputs)

    def finish(self) -> None:
        for work in self.running:
            work.wait()
        self.running.clear()
        self.steps += 1
        store, parameters = dist.distributed_c10d._get_default_store(), [*self.module.parameters()]
        store.set(f"{self.steps}-{dist.get_rank()}", pickle.dumps([each.grad.tolist() for each in parameters]))
        for rank in range(dist.get_world_size()):
            if rank != dist.get_rank():
                others = pickle.loads(store.get(f"{self.steps}-{rank}"))
                for parameter, other in zip(parameters, others, strict=True):
                    parameter.grad = (parameter.grad + torch.tensor(other)) / 2
