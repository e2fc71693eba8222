"""Print the calls that torch's public functions accept: as they are, or with the argument "patched", as composesim leaves them."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

MODULES = (
    *(
        "torch.cuda",
        "torch.cuda.memory",
        "torch.cuda.random",
        "torch.cuda.streams",
        "torch.cuda.amp",
        "torch.accelerator",
    ),
    *(
        "torch.distributed",
        "torch.distributed.distributed_c10d",
        "torch.distributed.device_mesh",
        "torch.distributed.tensor",
    ),
    *(
        "torch.nn.parallel",
        "torch.nn.utils",
        "torch.optim.optimizer",
        "torch.utils.data",
        "torch.utils.data.distributed",
    ),
    *("torch.amp", "torch.autograd", "torch.serialization", "torch.utils.cpp_extension", "torch.multiprocessing"),
)
Signature = list[tuple[str, str, bool]]  # the kind and name of each parameter, and whether it has a default


def signature_of(function: Any, *, itself: bool = False) -> Signature | None:
    """Return the parameters of a function, or of what it wraps unless `itself`; None if it has no signature."""
    try:
        found = inspect.signature(function, follow_wrapped=not itself)
    except (TypeError, ValueError):
        return None
    return [(each.kind.name, each.name, each.default is not each.empty) for each in found.parameters.values()]


def callables() -> Iterator[tuple[str, Any]]:
    """Yield public functions, classes and methods."""
    for name in MODULES:
        module = importlib.import_module(name)
        for key, value in sorted(vars(module).items()):
            if key.startswith("_") or not callable(value):
                continue
            yield f"{name}.{key}", value
            if inspect.isclass(value):
                yield from (
                    (f"{name}.{key}.{own}", each) for own, each in vars(value).items() if _is_called_by_name(own, each)
                )


def _is_called_by_name(name: str, value: Any) -> bool:
    return inspect.isfunction(value) and (name == "__init__" or not name.startswith("__"))


def patched() -> dict[str, list[Signature | None]]:
    """Patch torch as in a rank, and return what was patched by `wrap`: the function's parameters, and those of the original."""
    from compose_sim.node.shared import import_hooks

    found: dict[str, list[Signature | None]] = {}
    wrap = import_hooks.wrap

    def recording(owner: Any, name: str) -> Callable[..., Any]:
        original = getattr(owner, name)
        replace = wrap(owner, name)

        def replace_by(function: Any) -> Any:
            given = signature_of(function, itself=True)
            found[f"{getattr(owner, '__name__', owner)}.{name}"] = [given and given[1:], signature_of(original)]
            return replace(function)

        return replace_by

    import_hooks.wrap = recording
    from compose_sim.node.rank import emulate, instrument

    emulate.install()
    instrument.install()
    return found


def main() -> None:
    """Print one JSON object."""
    wrapped = patched() if "patched" in sys.argv else {}
    public = {name: signature_of(value, itself="patched" in sys.argv) for name, value in callables()}
    print("SIGNATURES", json.dumps({"public": public, "wrapped": wrapped}))


if __name__ == "__main__":
    main()
