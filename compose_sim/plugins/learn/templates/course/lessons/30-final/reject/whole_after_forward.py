"""Share out a network over four ranks with DTensors, and keep all blocks whole until their backward."""

from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class MLP(nn.Module):
    """Compute down(gelu(up(inputs)))."""

    def __init__(self, up: nn.Linear, down: nn.Linear, tensor_group: ProcessGroup, data_group: ProcessGroup) -> None:
        super().__init__()
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        self.layers = nn.Sequential(up, nn.GELU(), down)
        parallelize_module(self.layers, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(self.layers, mesh=mesh["data"])

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)
