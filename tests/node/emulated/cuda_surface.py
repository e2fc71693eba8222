"""Print what torch's functions for CUDA answer, as one line of JSON. Written for one H200; one rank, in this order.

Each probe is an expression and the answer that a GPU gives, as `str` shows it.
"""

import copy  # noqa: F401 - probes use it
import io
import json
import os
import warnings

import torch
import torch.distributed as dist
from torch import nn

warnings.simplefilter("ignore")


def begun():
    return torch.cuda.is_initialized()


def join():
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group("nccl", device_id=torch.device("cuda:0"))


def rebuilt(parameter):
    return type(parameter)(parameter.detach(), **parameter.__dict__)


def within(device, make):
    with torch.device(device):
        return str(make().device)


def default(device, make):
    torch.set_default_device(device)
    try:
        return str(make().device)
    finally:
        torch.set_default_device(None)


def elapsed():
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.ones(8, device="cuda").sum()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) >= 0 and start.query()


def side_stream():
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    with torch.cuda.stream(side):
        inside = torch.cuda.current_stream() == side
    return inside, torch.cuda.current_stream() == main, side == main


def drawn(seed):
    torch.cuda.manual_seed(seed)
    return torch.rand(4, device="cuda").tolist()


def restored():
    state = torch.cuda.get_rng_state()
    before = torch.rand(4, device="cuda").tolist()
    torch.cuda.set_rng_state(state)
    return before == torch.rand(4, device="cuda").tolist()


def resumed():
    """Restore the states of a checkpoint, the device's before the CPU's, after drawing from both."""
    torch.manual_seed(0)
    cuda, cpu = torch.cuda.get_rng_state(), torch.get_rng_state()
    drawn = [[torch.rand(1, device=place).item() for place in ("cuda", "cpu", "cuda")]]
    torch.cuda.set_rng_state(cuda)
    torch.set_rng_state(cpu)
    drawn += [[torch.rand(1, device=place).item() for place in ("cuda", "cpu", "cuda")]]
    return drawn[0] == drawn[1]


def states():
    """Return where the states of generators are, which are on the CPU for each device."""
    generators = torch.Generator(), torch.Generator("cuda")
    found = torch.get_rng_state(), torch.cuda.get_rng_state(), *(each.get_state() for each in generators)
    return [each.numpy() is not None and each.device.type for each in found], generators[0].device.type


def state_on_gpu(restore):
    return restore(torch.get_rng_state().cuda())


def forked():
    with torch.random.fork_rng(devices=[0]):
        first = torch.rand(4, device="cuda").tolist()
    return first == torch.rand(4, device="cuda").tolist()


def memory_of(megabytes):
    before = torch.cuda.memory_allocated()
    held = torch.empty(megabytes << 20, dtype=torch.uint8, device="cuda")
    grown = torch.cuda.memory_allocated() - before
    return grown >> 20, held.untyped_storage().nbytes() >> 20


def peak():
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.max_memory_allocated()
    held = torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
    return torch.cuda.max_memory_allocated() >= held.nbytes


def cast(dtype):
    layer, x = nn.Linear(2, 2).cuda(), torch.ones(1, 2, device="cuda")
    with torch.autocast("cuda", dtype=dtype):
        return layer(x).dtype, torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")


def scaled():
    layer, scaler = nn.Linear(2, 1).cuda(), torch.amp.GradScaler("cuda", init_scale=4.0)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    scaler.scale(layer(torch.full((1, 2), float("inf"), device="cuda")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale(), bool(layer.weight.isfinite().all())


def coalesced():
    tensors = [torch.full((1,), value, device="cuda") for value in (2.0, 3.0)]
    with dist._coalescing_manager(device=torch.device("cuda:0"), async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor, async_op=True)
    manager.wait()
    return [tensor.item() for tensor in tensors]


def jagged():
    values = [torch.ones(2, 3), torch.ones(4, 3)]
    ragged = torch.nested.nested_tensor(values, device="cuda", layout=torch.jagged)
    layer = nn.Linear(3, 1).cuda()
    layer(ragged).values().sum().backward()
    padded = torch.nested.to_padded_tensor(ragged, 0.0)
    return ragged.device.type, ragged.offsets().tolist(), layer.weight.grad.tolist(), tuple(padded.shape)


def sharded_loss():
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.parallel import loss_parallel

    mesh = torch.distributed.init_device_mesh("cuda", (1,))
    logits = distribute_tensor(torch.arange(8.0, device="cuda").reshape(2, 4), mesh, [Shard(1)]).requires_grad_()
    with loss_parallel():
        loss = nn.functional.cross_entropy(logits, torch.tensor([1, 3], device="cuda"))
        loss.backward()
    gradient = logits.grad.to_local()
    return round(loss.full_tensor().item(), 3), gradient.device.type, round(gradient.abs().sum().item(), 3)


def of_each_sample():
    layer = nn.Linear(3, 1).cuda()
    per_sample = torch.func.vmap(torch.func.grad(lambda w, x: torch.func.functional_call(layer, w, x).sum()), (None, 0))
    return per_sample(dict(layer.named_parameters()), torch.ones(5, 3, device="cuda"))["weight"].shape


def nvml():
    try:
        import pynvml
    except ImportError:
        return True, True, True, True
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    memory = pynvml.nvmlDeviceGetMemoryInfo(device)
    busy = pynvml.nvmlDeviceGetUtilizationRates(device).gpu
    named = pynvml.nvmlDeviceGetName(device) == torch.cuda.get_device_name(0)
    return pynvml.nvmlDeviceGetCount() >= 1, 0 <= busy <= 100, memory.used + memory.free <= memory.total, named


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


PROBES = [
    ("torch.cuda.is_available(), begun()", "(True, False)"),
    ("torch.cuda.device_count(), begun()", "(1, False)"),
    ("torch.cuda.memory_allocated(), len(torch.cuda.memory_stats()), begun()", "(0, 0, False)"),
    ("torch.cuda.device(0).idx, begun()", "(0, False)"),
    ("torch.cuda.manual_seed(1), torch.cuda.manual_seed_all(1), torch.cuda.empty_cache(), begun()", "(None, None, None, False)"),
    ("join(), begun()", "(None, False)"),
    ("torch.accelerator.is_available(), torch.accelerator.current_accelerator().type, begun()", "(True, 'cuda', False)"),
    ("torch.cuda.set_device(0), begun()", "(None, True)"),
    ("torch.cuda.current_device(), torch.accelerator.current_device_index()", "(0, 0)"),
    ("torch.device('cuda'), torch.device(0), torch.device('cuda', 0).index", "(device(type='cuda'), device(type='cuda', index=0), 0)"),
    ("within('cuda', lambda: torch.zeros(1))", "cuda:0"),
    ("within('cuda', lambda: nn.Linear(1, 1).weight)", "cuda:0"),
    ("within('cuda', lambda: torch.ones(1, device='cpu'))", "cpu"),
    ("within('meta', lambda: nn.Linear(1, 1).weight)", "meta"),
    ("within('cuda', lambda: torch.arange(2.0).cos())", "cuda:0"),
    ("default('cuda', lambda: nn.Linear(1, 1).weight)", "cuda:0"),
    ("default('cuda', lambda: torch.tensor([1.0]))", "cuda:0"),
    ("torch.zeros(1).device", "cpu"),
    ("nn.Linear(1, 1).cuda().weight.__dict__", "{}"),
    ("rebuilt(nn.Linear(1, 1).cuda().weight).device", "cuda:0"),
    ("copy.deepcopy(nn.Linear(1, 1).cuda().weight).device", "cuda:0"),
    ("elapsed()", "True"),
    ("side_stream()", "(True, True, False)"),
    ("torch.cuda.Event().query(), torch.cuda.current_stream().query()", "(True, True)"),
    ("torch.cuda.default_stream() == torch.cuda.current_stream(), torch.cuda.current_stream().device", "(True, device(type='cuda', index=0))"),
    ("drawn(3) == drawn(3), drawn(3) == drawn(4)", "(True, False)"),
    ("restored(), resumed(), forked()", "(True, True, True)"),
    ("states()", "(['cpu', 'cpu', 'cpu', 'cpu'], 'cpu')"),
    ("state_on_gpu(torch.set_rng_state)", "TypeError: RNG state must be a torch.ByteTensor"),
    ("state_on_gpu(torch.cuda.set_rng_state)", "TypeError: RNG state must be a torch.ByteTensor"),
    ("state_on_gpu(torch.Generator().set_state)", "TypeError: RNG state must be a torch.ByteTensor"),
    ("torch.cuda.initial_seed() == 4 if drawn(4) else None", "True"),
    ("torch.cuda.get_rng_state().device, torch.cuda.get_rng_state().dtype", "(device(type='cpu'), torch.uint8)"),
    ("torch.Generator('cuda').device.type, torch.randn(2, device='cuda', generator=torch.Generator('cuda')).device.type", "('cuda', 'cuda')"),
    ("memory_of(4)", "(4, 4)"),
    ("peak()", "True"),
    ("[free <= total for free, total in [torch.cuda.mem_get_info()]]", "[True]"),
    ("sorted(torch.cuda.memory_stats())[0], 'allocated_bytes.all.current' in torch.cuda.memory_stats()", "('active.all.allocated', True)"),
    ("cast(torch.bfloat16)", "(torch.bfloat16, torch.bfloat16, True)"),
    ("cast(torch.float16)", "(torch.float16, torch.float16, True)"),
    ("torch.is_autocast_enabled('cuda'), torch.get_autocast_dtype('cuda')", "(False, torch.float16)"),
    ("scaled()", "(2.0, True)"),
    ("torch.ones(1).pin_memory().is_pinned(), torch.ones(1).pin_memory().to('cuda', non_blocking=True).device", "(True, device(type='cuda', index=0))"),
    ("torch.load(saved(torch.ones(1).cuda())).device, torch.load(saved(torch.ones(1).cuda()), map_location='cpu').device", "(device(type='cuda', index=0), device(type='cpu'))"),
    ("torch.cuda.nvtx.range_push('a') >= 0, torch.cuda.nvtx.range_pop() >= 0", "(False, False)"),
    ("torch.cuda.get_device_capability() >= (8, 0), torch.cuda.is_bf16_supported()", "(True, True)"),
    ("torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.is_available()", "(False, True)"),
    ("str(torch.ones(1).cuda()), torch.ones(1).cuda().type()", "(\"tensor([1.], device='cuda:0')\", 'torch.cuda.FloatTensor')"),
    ("torch.cuda.synchronize(), torch.accelerator.synchronize(), torch.cuda.ipc_collect()", "(None, None, None)"),
    ("0 <= torch.cuda.utilization() <= 100, torch.cuda.temperature() > 0, torch.cuda.power_draw() > 0", "(True, True, True)"),
    ("torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device='cuda').device.type", "cuda"),
    ("torch.cuda.memory._snapshot()['device_traces']", "[[]]"),
    ("coalesced()", "[2.0, 3.0]"),
    ("nvml()", "(True, True, True, True)"),
    ("jagged()", "('cuda', [0, 2, 6], [[6.0, 6.0, 6.0]], (2, 4, 3))"),
    ("sharded_loss()", "(1.44, 'cuda', 1.269)"),
    ("of_each_sample()", "torch.Size([5, 1, 3])"),
    ("torch.ones(2, 2).to_sparse().cuda().device.type, torch.eye(2, device='cuda').to_sparse_csr().values().device.type", "('cuda', 'cuda')"),
    ("torch.linalg.svd(torch.eye(2, device='cuda')).S.device.type, torch.fft.rfft(torch.ones(4, device='cuda')).device.type", "('cuda', 'cuda')"),
    ("torch.ones(2, device='cuda').to(torch.float8_e4m3fn).device.type, torch.ones(2, device='cuda').to(torch.complex64).device.type", "('cuda', 'cuda')"),
    ("torch.ones(1).to(0).device.type, torch.ones(1).to('cuda:0', torch.half).dtype, torch.ones(1, device='cuda').get_device()", "('cuda', torch.float16, 0)"),
    ("torch.ones(1, device='cuda').new_zeros(2).device.type, torch.ones(1, device='cuda').new_tensor([1]).device.type", "('cuda', 'cuda')"),
    ("torch.ones(1, device='cuda').untyped_storage().device.type, torch.ones(1, device='cuda').untyped_storage().cpu().device.type", "('cuda', 'cpu')"),
    ("torch.get_device_module().__name__, torch.get_device_module('cuda') is torch.cuda", "('torch.cuda', True)"),
    ("torch.Stream(device='cuda').device.type, torch.Event(device='cuda').query()", "('cuda', True)"),
    ("dist.get_backend(), dist.get_default_backend_for_device('cuda'), dist.is_nccl_available()", "('nccl', 'nccl', True)"),
    ("torch.cuda.is_current_stream_capturing(), torch.cuda.get_allocator_backend(), torch.cuda.get_sync_debug_mode()", "(False, 'native', 0)"),
    ("torch.accelerator.device_count(), torch.accelerator.memory_allocated() == torch.cuda.memory_allocated()", "(1, True)"),
    ("torch.cuda.get_device_name() == torch.cuda.get_device_properties('cuda').name, torch.cuda.get_device_properties(0).multi_processor_count > 0", "(True, True)"),
    ("torch.cuda.device_memory_used() >= 0, torch.cuda.clock_rate() > 0, 'memory' in torch.cuda.memory_summary()", "(True, True, True)"),
    ("torch.backends.cuda.flash_sdp_enabled(), torch.cuda.amp.GradScaler().is_enabled()", "(True, True)"),
    ("torch.utils.data.default_convert({'a': torch.ones(1).cuda()})['a'].device.type, next(iter(torch.utils.data.DataLoader([1.0], pin_memory=True))).is_pinned()", "('cuda', True)"),
    ("nn.utils.rnn.pad_sequence([torch.ones(1).cuda(), torch.ones(2).cuda()]).device.type, torch.cdist(torch.ones(1, 2).cuda(), torch.ones(1, 2).cuda()).device.type", "('cuda', 'cuda')"),
    ("torch.ones(2, 2, device='cuda').unflatten(0, (1, 2)).device.type, [t.device.type for t in torch.ones(2, device='cuda').unbind()]", "('cuda', ['cuda', 'cuda'])"),
    ("hasattr(torch.cuda.use_mem_pool, '__wrapped__'), __import__('torch._dynamo').__name__", "(True, 'torch')"),
    ("torch.multinomial(torch.ones(3, device='cuda'), 2).device.type, torch.distributions.Normal(torch.zeros(1, device='cuda'), 1).sample().device.type", "('cuda', 'cuda')"),
]  # fmt: skip


def main():
    found = {}
    for expression, _ in PROBES:
        try:
            found[expression] = str(eval(expression))
        except Exception as error:
            found[expression] = f"{type(error).__name__}: {error}"
    print("SURFACE " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
