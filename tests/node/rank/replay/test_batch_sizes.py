"""What names a batch size is multiplied, and nothing else."""

from __future__ import annotations

import ast

import pytest

from compose_sim.node.rank.replay.batch_sizes import multiplied, multiplied_arguments


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("BATCH = 8", "BATCH = 24"),
        ("ROWS, BATCH_SIZE, DIM = (600, 8, 5)", "ROWS, BATCH_SIZE, DIM = (600, 24, 5)"),
        ("self.batch_size = 8", "self.batch_size = 24"),
        ("batch_size: int = 8", "batch_size: int = 24"),
        ("bs = 8", "bs = 24"),
        (
            "parser.add_argument('--batch-size', type=int, default=8)",
            "parser.add_argument('--batch-size', type=int, default=24)",
        ),
        ("def draw(step, batch=8, *, per_rank=2):\n    pass", "def draw(step, batch=24, *, per_rank=6):\n    pass"),
        ("Settings(batch_size=8)", "Settings(batch_size=24)"),
        ("{'batch_size': 8}", "{'batch_size': 24}"),
        ("batches = 8", "batches = 8"),
        ("global_batch = 8", "global_batch = 8"),
        ("batch_size = total // 8", "batch_size = total // 8"),
        ("batch_norm = True", "batch_norm = True"),
        ("batch_dim = 1", "batch_dim = 1"),
        ("layers_per_rank = 2", "layers_per_rank = 2"),
        ("start_batch = 2", "start_batch = 2"),
        ("per_device_train_batch_size = 2", "per_device_train_batch_size = 6"),
        ("batch_size_per_rank = 2", "batch_size_per_rank = 6"),
        ("steps = 8", "steps = 8"),
        ("job = 8", "job = 8"),
    ],
)
def test_a_number_with_the_name_of_a_batch_size_is_multiplied(line: str, expected: str) -> None:
    assert ast.unparse(multiplied(line.encode(), "train.py", 3)) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--batch-size 8 --epochs 8", "--batch-size 24 --epochs 8"),
        ("--batch_size=8 --lr=0.1", "--batch_size=24 --lr=0.1"),
        ("--global-batch 8 8", "--global-batch 8 8"),
        ("--batch-size auto", "--batch-size auto"),
    ],
)
def test_batch_sizes_are_multiplied_in_arguments(words: str, expected: str) -> None:
    assert multiplied_arguments(words.split(), 3) == expected.split()
