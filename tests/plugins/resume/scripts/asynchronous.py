"""Train with FSDP2, write checkpoints while training goes on, and name one in a file when all ranks have written it."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

SHARED = Path(os.environ["COMPOSESIM_SHARED"])
LATEST = SHARED / "latest"
STEPS, EVERY = 20, 4


def main():
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu", int(os.environ["LOCAL_RANK"]))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    data = torch.randn(1024, 8)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    of_savers = dist.new_group(backend="gloo")  # else the thread that saves would take part in what training does
    step, saving, folder = load(model, optimizer), None, None
    while step < STEPS:
        begin = (step * world_size + rank) * 8
        inputs = data[begin : begin + 8].to(device)
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % EVERY == 0:
            if saving is not None:
                saving.result()
                publish(folder)
            parameters, moments = get_state_dict(model, optimizer)
            folder = SHARED / f"step_{step}"
            state = {"model": parameters, "optimizer": moments, "step": step}
            saving = dcp.async_save(state, checkpoint_id=folder, process_group=of_savers)
    saving.result()
    publish(folder)
    dist.destroy_process_group()


def publish(folder):
    dist.barrier()
    if dist.get_rank() == 0:
        LATEST.with_suffix(".new").write_text(folder.name)
        LATEST.with_suffix(".new").replace(LATEST)


def load(model, optimizer):
    if not LATEST.exists():
        return 0
    parameters, moments = get_state_dict(model, optimizer)
    state = {"model": parameters, "optimizer": moments, "step": 0}
    dcp.load(state, checkpoint_id=SHARED / LATEST.read_text())
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return state["step"]


if __name__ == "__main__":
    main()
