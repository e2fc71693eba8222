"""Make device bugs in turn, and print what each raises as one line of JSON. Written for CUDA and NCCL, one rank."""

import json
import multiprocessing
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_module
from torch.nn.parallel import DistributedDataParallel as DDP

BUGS = {}


def bug(function):
    BUGS[function.__name__] = function
    return function


@bug
def a_sum_of_cpu_and_cuda():
    return torch.ones(2) + torch.ones(2, device="cuda")


@bug
def a_cpu_batch_for_a_linear_layer():
    return nn.Linear(2, 2).cuda()(torch.ones(3, 2))


@bug
def a_cpu_batch_for_a_convolution():
    return nn.Conv2d(1, 1, 3).cuda()(torch.ones(1, 1, 5, 5))


@bug
def a_cuda_batch_for_a_convolution():
    return nn.Conv2d(1, 1, 3)(torch.ones(1, 1, 5, 5, device="cuda"))


@bug
def a_cpu_batch_for_an_lstm():
    return nn.LSTM(2, 2).cuda()(torch.ones(3, 1, 2))


@bug
def a_cpu_batch_for_batch_norm():
    return nn.BatchNorm1d(2).cuda()(torch.ones(4, 2))


@bug
def cpu_indices_for_an_embedding():
    return nn.Embedding(4, 2).cuda()(torch.tensor([1, 2]))


@bug
def cpu_targets():
    return F.cross_entropy(torch.ones(2, 3, device="cuda"), torch.tensor([0, 1]))


@bug
def a_list_of_cpu_and_cuda():
    return torch.cat([torch.ones(1), torch.ones(1, device="cuda")])


@bug
def two_gpus_meet():
    return torch.ones(2, device="cuda:0") * torch.ones(2, device="cuda:1")


@bug
def an_index_that_no_gpu_has():
    torch.cuda.set_device(99)


@bug
def a_tensor_for_a_gpu_that_is_not_there():
    return torch.zeros(1, device="cuda:99")


@bug
def a_module_for_a_gpu_that_is_not_there():
    return nn.Linear(2, 2).to(99)


@bug
def numpy_of_a_cuda_tensor():
    return torch.ones(2, device="cuda").numpy()


@bug
def cuda_indices_for_a_cpu_tensor():
    return torch.ones(4)[torch.tensor([1], device="cuda")]


@bug
def a_generator_of_the_cpu():
    return torch.randn(2, device="cuda", generator=torch.Generator())


@bug
def pinning_a_cuda_tensor():
    return torch.ones(2, device="cuda").pin_memory()


@bug
def a_gradient_elsewhere():
    weight = torch.ones(2, device="cuda", requires_grad=True)
    weight.grad = torch.ones(2)


@bug
def loading_without_map_location():
    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        where = torch.serialization.location_tag
        torch.serialization.location_tag = lambda storage: "cuda:99"  # as saved on a machine with more GPUs
        try:
            torch.save({"weight": torch.ones(2)}, file.name)
        finally:
            torch.serialization.location_tag = where
        return torch.load(file.name)


@bug
def times_of_events_without_timing():
    start, end = torch.cuda.Event(), torch.cuda.Event()
    start.record()
    end.record()
    return start.elapsed_time(end)


@bug
def a_cpu_tensor_for_nccl():
    dist.all_reduce(torch.ones(1))


@bug
def columns_for_nccl():
    dist.all_reduce(torch.ones(3, 2, device="cuda")[:, 0])


@bug
def a_transposed_tensor_for_nccl():
    dist.broadcast(torch.ones(3, 2, device="cuda").t(), src=0)


@bug
def channels_last_for_nccl():
    dist.all_reduce(torch.ones(2, 3, 4, 4, device="cuda").to(memory_format=torch.channels_last))


@bug
def an_optimizer_of_dtensors_and_plain_tensors():
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    plain, whole = nn.Linear(2, 2).cuda(), distribute_module(nn.Linear(2, 2).cuda(), mesh)
    optimizer = torch.optim.AdamW([*plain.parameters(), *whole.parameters()])
    for parameter in (*plain.parameters(), *whole.parameters()):
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


@bug
def ddp_of_a_model_left_on_the_cpu():
    return DDP(nn.Linear(2, 2), device_ids=[0])


@bug
def sync_batch_norm_left_on_the_cpu():
    return DDP(nn.SyncBatchNorm(2))


@bug
def sync_batch_norm_of_a_cpu_batch():
    return nn.SyncBatchNorm(2)(torch.ones(2, 2))


def _in_child(queue):
    try:
        torch.ones(1).cuda()
        queue.put(["", "nothing was raised"])
    except Exception as error:
        queue.put([type(error).__name__, str(error)])


def in_a_fork():
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue,))
    child.start()
    found = queue.get()
    child.join()
    return found


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    found = {"cuda_in_a_fork": in_a_fork() if torch.ones(1).cuda().is_cuda else None}
    for name, function in BUGS.items():
        try:
            function()
            found[name] = ["", "nothing was raised"]
        except Exception as error:
            found[name] = [type(error).__name__, str(error)]
    print("BUGS " + json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
