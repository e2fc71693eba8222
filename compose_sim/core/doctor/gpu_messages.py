"""Explain known GPU errors, which have other causes and remedies on one machine, and read the transport from the log of NCCL."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

# The messages of NCCL up to 2.29, of 2.30.3 and 2.30.4, and since 2.30.7.
_DUPLICATE = re.compile(
    r"Duplicate GPU detected|Multiple ranks detected using the same GPU|Multiple Ranks are using the same GPU"
)
# The device that NCCL has chosen in torch 2.15 and later, and that of a tensor
_OTHER_DEVICE = re.compile(r"Expected tensor on cuda:\d+ but found tensor on cuda:\d+")
_DRIVER = re.compile(r"driver version is insufficient|driver on your system is too old")
_MPS = re.compile(
    r"CUDA_ERROR_MPS_\w+|MPS server is not ready|MPS client|MPS RPC failure|max(?:imum)? number of MPS clients"
)


# The condition of an assertion in torch's kernels -> what the script did
_ASSERTIONS = {
    "srcIndex < srcSelectDimSize": "an index of an embedding or of index_select is outside its table",
    "index out of bounds": "an index is outside the tensor",
    "t >= 0 && t < n_classes": "a label is not one of the classes of the loss",
    "cur_target >= 0 && cur_target < n_classes": "a label is not one of the classes of the loss",
    "input_val >= zero && input_val <= one": "binary_cross_entropy got a value outside 0 to 1",
    "cumdist[size - 1] > static_cast": "multinomial got probabilities whose sum is 0 or not finite",
}
_BLOCKING = "CUDA reports it late, perhaps at a later line. Run it again with --env CUDA_LAUNCH_BLOCKING=1, which names the line"
_EXPLAINED = (
    (re.compile(r"illegal memory access|misaligned address|unspecified launch failure"),
     f"A kernel used memory that is not its own. {_BLOCKING}. compute-sanitizer names the kernel and the thread."),
    (re.compile(r"uncorrectable ECC error|GPU has fallen off the bus|GPU is lost|NVRM: Xid|CUDA error: unknown error"),
     "This is the GPU, not the script. `nvidia-smi -q -d ECC,PAGE_RETIREMENT` shows its errors, and `dmesg | grep Xid` what the driver "
     "saw; a GPU that was lost needs a reset or a reboot."),
    (re.compile(r"shared memory\(shm\)|shared memory.{0,200}No space left on device|out of shared memory"),
     "/dev/shm is full: it holds the batches that workers of a DataLoader send. In containers, --shm-size 4g makes it larger; fewer "
     "workers, a smaller prefetch_factor or smaller batches need less."),
    (re.compile(r"no socket interface found"),
     "NCCL_SOCKET_IFNAME names no interface of this node. composesim sets it, unless the script or --env sets another value."),
)  # fmt: skip


def explain(text: str) -> str:
    """Return an explanation of the error in this text; "" if it contains no known error."""
    if _DUPLICATE.search(text):
        return (
            "NCCL found two ranks of one node on one GPU. Only ranks of different nodes can share a GPU, because each node has its "
            "own NCCL_HOSTID. Call torch.cuda.set_device(LOCAL_RANK) before the first collective, set --gpus-per-node to the value "
            "of --nproc-per-node, or use --nodes N --nproc-per-node 1."
        )
    if _OTHER_DEVICE.search(text):
        return (
            "Since torch 2.15, NCCL uses the device of LOCAL_RANK, unless the script names one with init_process_group(device_id=…). "
            'Call torch.cuda.set_device(LOCAL_RANK) before creating any tensor on "cuda".'
        )
    if "device-side assert" in text:
        why = next((f", because {what}" for condition, what in _ASSERTIONS.items() if condition in text), "")
        return (
            f"A kernel stopped{why}. {_BLOCKING}, or on emulated GPUs (--gpus emulated), whose errors name the value."
        )
    if found := next((meaning for pattern, meaning in _EXPLAINED if pattern.search(text)), ""):
        return found
    if _DRIVER.search(text):
        return "The NVIDIA driver is too old for the CUDA version of the nodes' torch: composesim doctor prints both."
    if _MPS.search(text):
        return (
            "The run's MPS refused or lost this rank. A rank that crashes on the GPU ends all clients of its MPS, so look at the "
            "rank that failed first. --share timeslice runs without MPS, slowly."
        )
    return ""


_CHANNEL = re.compile(r"Channel \d+(?:/\d+)? ?: \d+\[\w+\] -> \d+\[\w+\](?: \[(?:send|receive)\])? via (\S+)")
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_NODES = re.compile(r"nNodes (\d+)")
_INTERFACE = re.compile(r"NET/Socket : Using \[0\](\S+?):")


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclFacts:
    """What NCCL logged. `transports` are sorted by number of channels: "NET/Socket", "P2P", "SHM"."""

    transports: tuple[str, ...] = ()
    version: str = ""
    nodes: int | None = None  # how many hosts NCCL sees
    interface: str = ""


def read_nccl_log(lines: Iterable[str]) -> NcclFacts:
    """Return the facts in the output of all ranks."""
    found: Counter[str] = Counter()
    version, interface, nodes = "", "", None
    for line in lines:
        if "NCCL" not in line:
            continue
        if match := _CHANNEL.search(line):
            found["/".join(match[1].split("/")[:2]) if match[1].startswith("NET") else match[1].split("/")[0]] += 1
        if match := _VERSION.search(line):
            version = match[1]
        if match := _NODES.search(line):
            nodes = int(match[1])
        if match := _INTERFACE.search(line):
            interface = match[1]
    transports = tuple(transport for transport, _ in found.most_common())
    return NcclFacts(transports=transports, version=version, nodes=nodes, interface=interface)
