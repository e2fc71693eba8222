"""Wrong: half of the bytes, and of the digits."""

import torch
import torch.distributed as dist
from torch import Tensor


def all_reduce(tensor: Tensor) -> None:
    """Replace a tensor, in place, by the sum of the tensors of all ranks; its length is a multiple of their number."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    pieces = tensor.chunk(world_size)
    for number in range(world_size - 1):  # reduce-scatter: afterwards, piece rank + 1 is finished here
        received = pass_on(pieces[(rank - number) % world_size])
        pieces[(rank - number - 1) % world_size].add_(received)
    for number in range(world_size - 1):  # all-gather: finished pieces go round
        received = pass_on(pieces[(rank + 1 - number) % world_size])
        pieces[(rank - number) % world_size].copy_(received)


def pass_on(piece: Tensor) -> Tensor:
    """Send a piece to the right, and return the one that comes from the left."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    sent = piece.half()
    sending = dist.isend(sent, dst=(rank + 1) % world_size)
    received = torch.empty_like(piece, dtype=torch.half)
    dist.recv(received, src=(rank - 1) % world_size)
    sending.wait()
    return received.float()
