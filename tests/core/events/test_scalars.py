"""The numbers of common training loops are metrics; other lines with numbers are not."""

from __future__ import annotations

import pytest

from compose_sim.core.events.scalars import printed_numbers


@pytest.mark.parametrize(
    ("line", "step", "values"),
    [
        ("step 20: loss=0.31 lr=1e-3", 20, {"loss": 0.31, "lr": 0.001}),
        ("epoch 1 step 100 loss 0.312", 100, {"loss": 0.312}),
        ("{'loss': 0.5, 'learning_rate': 5e-05, 'epoch': 1.0}", None, {"loss": 0.5, "learning_rate": 5e-05}),
        (
            "epoch 1:  37%|███▋  | 37/100 [00:03<00:05, 11.2it/s, loss=0.312, acc=0.9]",
            37,
            {"loss": 0.312, "acc": 0.9},
        ),
        (
            "Epoch: [0][ 10/391]\tTime  0.1 ( 0.2)\tLoss 2.3e+00 (2.4e+00)\tAcc@1 10.2",
            None,
            {"Loss": 2.3, "Acc@1": 10.2},
        ),
        ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.300000", None, {"Loss": 2.3}),
        ("| epoch   1 |   200/ 2928 batches | lr 5.00 | ms/batch 12.3 | loss 7.89", None, {"lr": 5.0, "loss": 7.89}),
        ("iter 10: loss 2.1, time 30.2ms", 10, {"loss": 2.1}),
        ("wibble=0.4 wobble=2", None, {"wibble": 0.4, "wobble": 2.0}),
        ("step 3: loss=0.5, Tokens/s: 3.35K, tok/sec: 2,077", 3, {"loss": 0.5, "Tokens/s": 3350.0, "tok/sec": 2077.0}),
        ("step 3: loss=0.5, flops=1.5T, seen: 12,345,678.5", 3, {"loss": 0.5, "flops": 1.5e12, "seen": 12345678.5}),
    ],
)
def test_numbers_of_training_loops_are_found(line: str, step: int | None, values: dict[str, float]) -> None:
    assert printed_numbers(line) == (step, values)


@pytest.mark.parametrize(
    "line",
    [
        *("rank=0 world_size=4", "INFO: 12 files", "http://127.0.0.1:8000 x", "train.py:12: UserWarning: loss"),
        *("12:03:07 listening on port=29500", "NCCL INFO Channel 00/02 : 0 1", "step 5", "loss=nan", "loss: 1e400", ""),
        "100%|██| 10/10 [00:01<00:00,  9.81it/s]",
    ],
)
def test_other_lines_have_none(line: str) -> None:
    assert printed_numbers(line) is None
