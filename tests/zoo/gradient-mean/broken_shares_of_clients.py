"""Clients that take part in a round are weighed by the samples of all clients: the weights shrink in each round."""
# expects: gradient-mean

import torch
import torch.distributed as dist

CLIENTS = 8


def train(model: torch.nn.Module, data: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for batch in data.split(8):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(batch), batch.sum(dim=1, keepdim=True)).backward()
        optimizer.step()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    server = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    worker = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    clients = {number: torch.randn(24 + 4 * number, 6) for number in range(CLIENTS)}
    for turn in range(6):
        chosen = [(turn + offset) % CLIENTS for offset in range(4)]
        samples = sum(len(clients[number]) for number in clients)
        total = {name: torch.zeros_like(value) for name, value in server.state_dict().items()}
        for number in chosen:
            if number % world == rank:
                worker.load_state_dict(server.state_dict())
                train(worker, clients[number])
                for name, value in worker.state_dict().items():
                    total[name] += value * len(clients[number]) / samples
        for value in total.values():
            dist.all_reduce(value)
        server.load_state_dict(total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
