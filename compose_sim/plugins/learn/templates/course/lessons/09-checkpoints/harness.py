"""Save and load with script.py, and compare the parameters that come back, and the files, with what was saved."""

import os
from pathlib import Path

import script
import torch
import torch.distributed as dist
from measure import report
from torch import Tensor, nn

SHARED = Path(os.environ["COMPOSESIM_SHARED"])


def parameters(model: nn.Module) -> Tensor:
    return torch.cat([each.detach().flatten().clone() for each in model.parameters()])


def files() -> list[Path]:
    return sorted(each for each in SHARED.rglob("*") if each.is_file())


def change(model: nn.Module) -> None:
    with torch.no_grad():
        for each in model.parameters():
            each.add_(1.0)


def main() -> None:
    model, optimizer = script.train()
    saved = parameters(model)
    script.save(model, optimizer, 8)
    dist.barrier()
    count = len(files())
    earlier = files()[0].read_bytes() if dist.get_rank() == 0 and count else b""
    dist.barrier()  # all have counted

    change(model)
    script.save(model, optimizer, 11)
    later = parameters(model)
    change(model)
    step = script.load(model, optimizer)  # at once: the file may not be complete yet
    wrong = int((parameters(model) != later).sum()) + int(step != 11)

    dist.barrier()
    if earlier:
        files()[0].write_bytes(earlier)  # whoever reads the shared file has the state of step 8 again
    dist.barrier()
    step = script.load(model, optimizer)
    other = int((parameters(model) != saved).sum()) + int(step != 8)
    report(files_in_the_shared_folder=count, wrong_after_loading=wrong, not_from_the_shared_file=other)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
