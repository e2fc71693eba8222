"""How do recurrent layers compute? As on the CPU: a CUDA build of torch would otherwise have cuDNN pack their weights."""

from __future__ import annotations

from typing import Any


def emulate(cudnn: Any) -> None:
    """Say of every tensor what cuDNN says of one on the CPU, since that is where it is."""
    cudnn.is_acceptable = lambda tensor: False
