"""A tensor is on the emulated device that the script chose, and what CUDA refuses fails with CUDA's message."""

from __future__ import annotations

import pytest

from tests.node.rank.emulate.conftest import Emulation

pytestmark = pytest.mark.train

SAME_DEVICE = "RuntimeError: Expected all tensors to be on the same device, but "


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("x", "tensor([[0., 0., 0.],\n        [0., 0., 0.]], device='cuda:0')"),
        ("x.double().sum(1)", "tensor([0., 0.], device='cuda:0', dtype=torch.float64)"),
        (
            "torch.ones(2, device='cuda', requires_grad=True) * 2",
            "tensor([2., 2.], device='cuda:0', grad_fn=<MulBackward0>)",
        ),
        (
            "x.device, y.device, c.device",
            "(device(type='cuda', index=0), device(type='cuda', index=1), device(type='cpu'))",
        ),
        ("(x + 1).device, x.is_cuda, c.is_cuda", "(device(type='cuda', index=0), True, False)"),
        ("x.get_device(), y.get_device(), c.get_device()", "(0, 1, -1)"),
        ("x.to('cuda:0') is x, x.cuda() is x, c.cpu() is c, x.to(1).device.index", "(True, True, True, 1)"),
        ("c.cuda().add_(1).sum().item(), c.sum().item()", "(12.0, 6.0)"),
        (
            "x.type(), x.half().type(), x.cpu().type()",
            "('torch.cuda.FloatTensor', 'torch.cuda.HalfTensor', 'torch.FloatTensor')",
        ),
        ("isinstance(x, torch.cuda.FloatTensor), isinstance(x, torch.FloatTensor)", "(True, False)"),
        (
            "(x + torch.tensor(1.0)).device, x[torch.tensor([0])].device",
            "(device(type='cuda', index=0), device(type='cuda', index=0))",
        ),
        (
            "hooked(lambda layer: layer), hooked(lambda layer: layer.cuda()), hooked(lambda layer: layer.to('cuda:0'))",
            "(1, 1, 1)",
        ),
        ("hooked(lambda layer: layer.cpu().cuda()), hooked(lambda layer: layer.to(1).cuda(0))", "(0, 0)"),  # as on GPUs
        ("y.new_zeros(1).device.index, torch.empty_like(y).device.index", "(1, 1)"),
        ("torch.device(1), torch.device('cuda')", "(device(type='cuda', index=1), device(type='cuda'))"),
        (
            "nn.Linear(2, 2).to(1).weight.device, copy.deepcopy(nn.Linear(2, 2).cuda()).bias.device.index",
            "(device(type='cuda', index=1), 0)",
        ),
        (
            "nn.LSTM(3, 4).cuda()(x)[0].device, F.cross_entropy(x, torch.tensor([0, 1], device=0)).device.index",
            "(device(type='cuda', index=0), 0)",
        ),
        ("checkpoint(nn.Linear(3, 1).cuda(), x, use_reentrant=False).device", "cuda:0"),
        (
            "nn.utils.rnn.pack_padded_sequence(x.view(1, 2, 3), torch.tensor([2]), batch_first=True).batch_sizes.device",
            "cpu",
        ),
        (
            "[t.device.type for t in nn.utils.rnn.pad_packed_sequence(nn.GRU(3, 4).cuda()("
            "nn.utils.rnn.pack_padded_sequence(x.view(2, 1, 3), torch.tensor([2])))[0])]",
            "['cuda', 'cpu']",
        ),
        (
            "checkpoint(nn.Sequential(nn.Linear(3, 1), nn.GELU()).cuda(), x, use_reentrant=False).sum().backward()",
            "None",
        ),
        (
            "[getattr(torch.distributed.distributed_c10d, name) is getattr(torch.distributed, name) for name in ('isend', 'irecv')]",
            "[True, True]",
        ),
        ("torch.autograd.profiler.profile(use_device='cuda').use_device", "None"),
        ("optimizer_state()", "{'step': 'cpu', 'exp_avg': 'cuda:0', 'exp_avg_sq': 'cuda:0'}"),
        (
            "c.pin_memory().is_pinned(), torch.zeros(1, pin_memory=True).is_pinned(), c.is_pinned()",
            "(True, True, False)",
        ),
        (
            "torch.Tensor([1.0]).device, torch.cuda.FloatTensor([1.0]).device",
            "(device(type='cpu'), device(type='cuda', index=0))",
        ),
        (
            "torch.cuda.device_count(), torch.accelerator.current_accelerator(), torch.cuda.get_device_name()",
            "(2, device(type='cuda'), 'CUDA emulated on the CPU')",
        ),
        ("torch.randn(1, device='cuda', generator=torch.Generator('cuda')).device", "cuda:0"),
        ("draws(None) == draws(0), draws(None) == draws(1), draws(1) == draws(1)", "(True, False, True)"),
        ("nn.Linear(2, 2).cuda().weight.grad, torch.get_default_device()", "(None, device(type='cpu'))"),
        ("torch.compile(nn.Linear(2, 2)).state_dict().keys()", "odict_keys(['_orig_mod.weight', '_orig_mod.bias'])"),
    ],
)
def test_what_a_script_sees(emulated: Emulation, expression: str, answer: str) -> None:
    assert emulated(expression) == answer


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        (
            "x + c",
            "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
        ),
        (
            "torch.maximum(x, y)",
            "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cuda:1!",
        ),
        (
            "nn.Linear(3, 1).cuda()(c)",
            f"{SAME_DEVICE}got mat1 is on cpu, different from other tensors on cuda:0 (when "
            "checking argument in method wrapper_CUDA_addmm)",
        ),
        (
            "F.cross_entropy(x, torch.tensor([0, 1]))",
            f"{SAME_DEVICE}got target is on cpu, different from other tensors on cuda:0",
        ),
        ("x @ c.T", f"{SAME_DEVICE}got mat2 is on cpu, different from other tensors on cuda:0"),
        (
            "nn.Embedding(4, 2).cuda()(torch.tensor([1]))",
            f"{SAME_DEVICE}got index is on cpu, different from other tensors",
        ),
        ("torch.cat([c, x])", f"{SAME_DEVICE}got tensors is on cuda:0, different from other tensors on cpu"),
        (
            "c[torch.tensor([0], device='cuda')]",
            "RuntimeError: indices should be either on cpu or on the same device as the indexed tensor (cpu)",
        ),
        (
            "x.numpy()",
            "TypeError: can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first.",
        ),
        ("torch.zeros(1, device='cuda:2')", "AcceleratorError: CUDA error: invalid device ordinal"),
        ("torch.cuda.set_device(2)", "AcceleratorError: CUDA error: invalid device ordinal"),
        ("x.pin_memory()", "RuntimeError: cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned"),
        (
            "torch.randn(1, device='cuda', generator=torch.Generator())",
            "RuntimeError: Expected a 'cuda' device type for generator but found 'cpu'",
        ),
    ],
)
def test_what_cuda_refuses(emulated: Emulation, expression: str, error: str) -> None:
    assert emulated(expression).startswith(error)


@pytest.mark.parametrize(
    ("map_location", "answer"),
    [
        ("None", "cuda:1"),
        ("'cpu'", "cpu"),
        ("'cuda'", "cuda:0"),
        ("{'cuda:1': 'cuda:0'}", "cuda:0"),
        ("lambda storage, location: storage.cuda(0)", "cuda:0"),
        ("lambda storage, location: storage", "cpu"),
    ],
)
def test_a_checkpoint_goes_where_it_is_sent(emulated: Emulation, map_location: str, answer: str) -> None:
    assert emulated(f"torch.load(saved(y), map_location={map_location}).device") == answer
    assert emulated(f"torch.load(saved(nn.Parameter(y)), map_location={map_location}).device") == answer


def test_a_missing_map_location_is_torchs_own_error(emulated: Emulation) -> None:
    told = emulated("torch.load(io.BytesIO(saved(y).read().replace(b'cuda:1', b'cuda:7')))")

    assert told.startswith(
        "RuntimeError: Attempting to deserialize object on CUDA device 7 but torch.cuda.device_count() is 2"
    )


def test_what_is_saved_holds_nothing_of_ours(emulated: Emulation) -> None:
    assert emulated("b'compose' in saved([nn.Parameter(x), y, nn.Linear(1, 1).cuda()]).read()") == "False"
    assert emulated("b'compose' in pickle.dumps([nn.Parameter(x), y])") == "False"


@pytest.mark.parametrize(
    ("expression", "named"),
    [
        ("torch.cuda.CUDAGraph()", "torch.cuda.CUDAGraph"),
        ("torch.cuda.graph(None)", "torch.cuda.graph"),
        ("torch.cuda.make_graphed_callables(None, None)", "torch.cuda.make_graphed_callables"),
        (
            "torch.utils.cpp_extension.load_inline('mine', '', cuda_sources='__global__ void f() {}')",
            "the CUDA extension 'mine'",
        ),
        ("torch.utils.cpp_extension.load('mine', ['mine.cu'])", "the CUDA extension 'mine'"),
        ("torch.cuda.jiterator._create_jit_fn('')", "torch.cuda.jiterator"),
        ("torch.cuda.cudart()", "torch.cuda.cudart"),
        (
            "nn.DataParallel(nn.Linear(3, 1).cuda())(x)",
            "moving tensors between the GPUs of one process (nn.DataParallel)",
        ),
        ("torch.cuda.MemPool()", "torch.cuda.MemPool"),
    ],
)
def test_what_cannot_be_emulated_is_named_with_the_line(emulated: Emulation, expression: str, named: str) -> None:
    told = emulated(expression)

    assert told.startswith(f"NotEmulatedError: {named} needs a real GPU")


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_default_device_is_where_new_tensors_are(emulated: Emulation, device: str) -> None:
    expected = "cuda:1" if device == "cuda:1" else "cuda:0"
    emulated(f"torch.set_default_device('{device}')")
    try:
        assert emulated(
            "{str(t.device) for t in (torch.zeros(1), nn.Linear(1, 1).weight, torch.arange(2).sum())}"
        ) == str({expected})
    finally:
        emulated("torch.set_default_device(None)")
