"""What does an error that only GPUs bring mean for a cluster on one machine? A sentence and a remedy for each that is known."""

from __future__ import annotations

import re

# NCCL's words up to 2.29, in 2.30.3 and 2.30.4, and since 2.30.7.
_DUPLICATE = re.compile(
    r"Duplicate GPU detected|Multiple ranks detected using the same GPU|Multiple Ranks are using the same GPU"
)
_DRIVER = re.compile(r"driver version is insufficient|driver on your system is too old")
_MPS = re.compile(
    r"CUDA_ERROR_MPS_\w+|MPS server is not ready|MPS client|MPS RPC failure|max(?:imum)? number of MPS clients"
)


def explain(text: str) -> str:
    """What to know of the error in this text; "" where it says nothing that is known here."""
    if _DUPLICATE.search(text):
        return (
            "NCCL found two ranks of one node on one GPU. Ranks of different nodes may share a GPU (each node has a NCCL_HOSTID "
            "of its own); ranks of one node take one each: torch.cuda.set_device(LOCAL_RANK) before the first collective, "
            "--gpus-per-node as many as --nproc-per-node, or --nodes N --nproc-per-node 1."
        )
    if _DRIVER.search(text):
        return "The machine's NVIDIA driver is older than the CUDA that the nodes' torch is built for: composesim doctor names both."
    if _MPS.search(text):
        return (
            "The run's MPS refused or lost this rank. One rank that crashes on the GPU takes all clients of its MPS with it; what "
            "failed first is the one to look at. --share timeslice runs without MPS, slowly."
        )
    return ""
