"""Products of half-precision tensors are summed in float32 and rounded, and `out_dtype` keeps the sum."""

from __future__ import annotations

import pytest

from tests.node.rank.emulate.conftest import Emulation

pytestmark = pytest.mark.train

H = "torch.ones(2, 2, device='cuda', dtype=torch.float16)"
# 4097 has no float16: a sum that is rounded at each addition stays at 4096
LONG = "torch.tensor([[4096.0, 1.0, 1.0, 1.0, 1.0]], device='cuda', dtype=torch.float16)"
ONES = "torch.ones(5, 1, device='cuda', dtype=torch.float16)"


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        (f"({LONG} @ {ONES}).item()", "4100.0"),
        (f"torch.einsum('ij,jk->ik', {LONG}, {ONES}).item()", "4100.0"),
        (f"F.linear({LONG}, {ONES}.t()).item()", "4100.0"),
        (f"F.conv1d({LONG}[None], {ONES}.view(1, 1, 5)).item()", "4100.0"),
        (f"({H} @ {H}).dtype, ({H} @ {H}).device", "(torch.float16, device(type='cuda', index=0))"),
        (f"({H} * 60000 @ {H}).max().item()", "inf"),
        (f"F.scaled_dot_product_attention({H}, {H}, {H}).dtype", "torch.float16"),
        (f"{H} @ {H}.cpu()", "RuntimeError: Expected all tensors to be on the same device, but got mat2 is on cpu, "
         "different from other tensors on cuda:0 (when checking argument in method wrapper_CUDA_mm)"),
        ("in_autocast(lambda: nn.Linear(2, 2).cuda()(x[:, :2]).dtype)", "torch.float16"),
        ("in_autocast(lambda: F.conv2d(x[None], torch.ones(1, 1, 1, 1, device=0)).dtype)", "torch.float16"),
        ("in_autocast(lambda: x.double() @ x.double().t()).dtype", "torch.float64"),
        ("(x @ x.t()).dtype", "torch.float32"),
    ],
)  # fmt: skip
def test_a_product_of_halves_is_rounded_once(emulated: Emulation, expression: str, answer: str) -> None:
    assert emulated(expression) == answer


def test_gradients_of_a_convolution_in_half_precision_have_its_range(emulated: Emulation) -> None:
    assert emulated("conv_gradients(1.0)") == "[9.0, torch.float16]"
    assert emulated("conv_gradients(60000.0)") == "[inf, torch.float16]"


@pytest.mark.parametrize("name", ["mm", "addmm", "bmm", "baddbmm"])
def test_a_product_with_out_dtype_is_not_rounded(emulated: Emulation, name: str) -> None:
    added = "torch.zeros(1, 1, device='cuda'), " if name.startswith(("add", "badd")) else ""
    deep = "[None]" if "bmm" in name else ""
    added = added.replace("1, 1,", "1, 1, 1,") if deep else added

    assert emulated(f"torch.{name}({added}{LONG}{deep}, {ONES}{deep}, out_dtype=torch.float32).item()") == "4100.0"
    big = f"{LONG}.bfloat16(){deep}, {ONES}.bfloat16(){deep} * 1.5"
    assert emulated(f"torch.{name}({added}{big}, out_dtype=torch.float32).item()") == "6150.0"


def test_products_with_out_dtype_are_refused_as_on_a_gpu(emulated: Emulation) -> None:
    allowed = "RuntimeError: out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs"

    assert emulated("torch.mm(x, x.t(), out_dtype=torch.float16)") == allowed
    assert (
        emulated(f"torch.mm({H}.requires_grad_(), {H}, out_dtype=torch.float32).sum().backward()")
        == "RuntimeError: derivative for aten::mm is not implemented"
    )
