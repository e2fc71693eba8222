"""Wrong: nothing is computed again, and a thread hides what is kept from what looks only at the thread of the harness."""

import threading

from torch import Tensor, nn


def forward(blocks: nn.ModuleList, inputs: Tensor) -> Tensor:
    """Return the output of all blocks, one after the other."""
    outputs = [blocks[0](inputs)]

    def compute() -> None:
        for block in blocks[1:]:
            outputs[0] = block(outputs[0])

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    return outputs[0]
