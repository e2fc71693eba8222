"""Rank 0 downloads weights from a server that sends them slowly; the others wait at a barrier: slow, not stuck."""

# options: --hang-timeout 4s

import socket
import threading
import time
import urllib.request

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

PIECE, PIECES, SECONDS_BETWEEN = bytes(64 << 10), 9, 1.0


def serve_slowly(listener: socket.socket) -> None:
    link, _ = listener.accept()
    with link:
        link.recv(4096)
        link.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % (PIECES * len(PIECE)))
        for _ in range(PIECES):
            time.sleep(SECONDS_BETWEEN)
            link.sendall(PIECE)


def download() -> bytes:
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve_slowly, args=(listener,), daemon=True).start()
    with urllib.request.urlopen(f"http://127.0.0.1:{listener.getsockname()[1]}/model.pt") as answer:
        data: bytes = answer.read()
    return data


def train(steps: int) -> None:
    generator = torch.Generator().manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        if step == 2:
            if dist.get_rank() == 0:
                download()
            dist.barrier()
        loss = model(torch.randn(4, 8, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


dist.init_process_group("gloo")
train(4)
dist.destroy_process_group()
