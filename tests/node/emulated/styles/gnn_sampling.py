"""Graph networks in PyG's and DGL's styles: sampled neighbors, index_add and sparse products, batches on a side stream."""

import os
from dataclasses import dataclass, fields

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

NODES, CLASSES = 120, 4


@dataclass
class Batch:
    x: torch.Tensor
    edge_index: torch.Tensor
    y: torch.Tensor

    def _apply(self, function):
        return Batch(*(function(getattr(self, field.name)) for field in fields(self)))

    def pin_memory(self):
        return self._apply(torch.Tensor.pin_memory)

    def to(self, device, non_blocking=False):
        return self._apply(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def record_stream(self, stream):
        return self._apply(lambda tensor: tensor.record_stream(stream) or tensor)


class NeighborSampler:
    """Collates seeds into the subgraph of a few of their neighbors, in a worker."""

    def __init__(self, features, edge_index, labels, fanout):
        self.features, self.labels, self.fanout = features, labels, fanout
        order = edge_index[1].argsort(stable=True)
        self.row = edge_index[0][order]
        self.rowptr = torch.zeros(NODES + 1, dtype=torch.long)
        torch.cumsum(torch.bincount(edge_index[1], minlength=NODES), 0, out=self.rowptr[1:])

    def __call__(self, seeds):
        seeds = torch.tensor(seeds)
        draws = torch.Generator().manual_seed(int(seeds.sum()))
        frontier, sources, targets = seeds, [], []
        for _ in range(2):
            for node in frontier.tolist():
                neighbors = self.row[self.rowptr[node] : self.rowptr[node + 1]]
                chosen = neighbors[torch.randperm(len(neighbors), generator=draws)[: self.fanout]]
                sources.append(chosen)
                targets.append(torch.full_like(chosen, node))
            frontier = torch.cat(sources).unique()
        edges = torch.stack([torch.cat(sources), torch.cat(targets)])
        rest = edges.unique()
        nodes = torch.cat([seeds, rest[~torch.isin(rest, seeds)]])
        local = torch.full((NODES,), -1).scatter_(0, nodes, torch.arange(len(nodes)))
        return Batch(self.features[nodes], local[edges], self.labels[seeds])


class SAGEConv(nn.Module):
    def __init__(self, ins, outs, sparse):
        super().__init__()
        self.lin_l, self.lin_r, self.sparse = nn.Linear(ins, outs), nn.Linear(ins, outs, bias=False), sparse

    def forward(self, x, edge_index):
        source, target = edge_index
        degree = torch.zeros(len(x), device=x.device).scatter_add_(0, target, torch.ones_like(target, dtype=x.dtype))
        if self.sparse:
            values = torch.ones(edge_index.shape[1], device=x.device)
            adjacency = torch.sparse_coo_tensor(edge_index.flip(0), values, (len(x), len(x))).coalesce()
            assert adjacency.device == x.device == adjacency.indices().device
            aggregated = torch.sparse.mm(adjacency, x)
        else:
            aggregated = x.new_zeros(x.shape).index_add_(0, target, x.index_select(0, source))
        return self.lin_l(aggregated / degree.clamp(min=1).unsqueeze(-1)) + self.lin_r(x)


class SAGE(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([SAGEConv(8, 16, sparse=False), SAGEConv(16, CLASSES, sparse=True)])

    def forward(self, x, edge_index):
        return self.convs[1](nn.functional.relu(self.convs[0](x, edge_index)), edge_index)


class PrefetchLoader:
    def __init__(self, loader, device):
        self.loader, self.device, self.stream = loader, device, torch.cuda.Stream(device)

    def __iter__(self):
        batch = None
        for following in self.loader:
            assert following.x.is_pinned()
            with torch.cuda.stream(self.stream):
                moved = following.to(self.device, non_blocking=True)
            if batch is not None:
                yield batch
            torch.cuda.current_stream(self.device).wait_stream(self.stream)
            moved.record_stream(torch.cuda.current_stream(self.device))
            batch = moved
        yield batch


if __name__ == "__main__":
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    torch.manual_seed(12)
    labels = torch.randint(CLASSES, (NODES,))
    features = nn.functional.one_hot(labels, 8).float() + 0.5 * torch.randn(NODES, 8)
    edge_index = torch.randint(NODES, (2, 900))
    model = nn.parallel.DistributedDataParallel(SAGE().to(device), device_ids=[device])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    seeds = torch.arange(96).tensor_split(dist.get_world_size())[dist.get_rank()].tolist()
    sampler = NeighborSampler(features, edge_index, labels, fanout=4)
    loader = DataLoader(seeds, batch_size=12, collate_fn=sampler, num_workers=2, pin_memory=True, drop_last=True)
    for epoch in range(2):
        for step, batch in enumerate(PrefetchLoader(loader, device)):
            loss = nn.functional.cross_entropy(model(batch.x, batch.edge_index)[: len(batch.y)], batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
            if dist.get_rank() == 0:
                print(f"epoch {epoch} step {step} loss {mean.item():.6f}", flush=True)
    model.eval()
    with torch.no_grad():
        edges, x = edge_index.to(device), features.to(device)
        logits = model.module(x, edges)
        largest = torch.full_like(x, -1e9).scatter_reduce(
            0, edges[1][:, None].expand(-1, 8), x[edges[0]], reduce="amax", include_self=True
        )
        csr = torch.sparse_coo_tensor(edges.flip(0), torch.ones(900, device=device), (NODES, NODES)).to_sparse_csr()
        assert csr.crow_indices().device == device
        torch.testing.assert_close((csr @ x)[5], x[edges[0][edges[1] == 5]].sum(0))
        part = torch.arange(96, NODES, device=device).tensor_split(dist.get_world_size())[dist.get_rank()]
        right = (logits[part].argmax(1) == labels.to(device)[part]).sum()
        parts = torch.empty(dist.get_world_size(), dtype=right.dtype, device=device)
        dist.all_gather_into_tensor(parts, right.unsqueeze(0))
    reached = nn.functional.cross_entropy(logits[96:], labels[96:].to(device))
    if dist.get_rank() == 0:
        print(f"right {parts.sum().item() > 6} of max {largest.max().item() > 1} loss {reached.item():.6f}", flush=True)
    dist.destroy_process_group()
