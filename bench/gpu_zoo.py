"""Judge the scripts of tests/zoo on the CPU, on emulated GPUs and on real ones, and write gpu-zoo.md: `python -m bench.gpu_zoo`.

Each name of WHERE runs the chosen scripts and replaces their results in gpu-zoo.json; the page is written from all of them,
so that the machine with GPUs need not be the one that wrote the rest. `--options` names a shape, as in `--nodes 2`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from compose_sim.core.request.names import CHECK_IDS
from tests.zoo.runner import examples, run_examples

RESULTS, PAGE = (Path(__file__).with_name(f"gpu-zoo.{kind}") for kind in ("json", "md"))
GPUS = {"cpu": "", "emulated": "emulated", "real": "all", "shared": "0"}
SHAPES = {"shared": "--nodes 4 --nproc-per-node 1"}  # NCCL refuses two ranks of a node on one GPU
NOTES = """With NCCL, ranks that issue different collectives hang where gloo raises an error, so `hang` is said as well.

The columns are of different days, and so of different commits, and each names the machine of its latest scripts. `emulated` is of
2026-11-26 and 27; so are 106 scripts of `shared`, 16 of them on an H200 and all others on an H100, and 47 of each column `real`, on two
H200s, the others on two H100s. The columns `cpu` contain only what was missed in a column of GPUs, and what cannot happen elsewhere.
Of what is missed on GPUs:

- What the CPU misses in the same shape too needs four ranks, two nodes, or a node with more than one rank.
- broken_experts_wrapped, broken_ignored_by_fsdp: these scripts failed with NCCL and CUDA (a tensor that is not contiguous; `foreach`
  with DTensors among plain tensors). They have been changed, and are found since.
- broken_deltas_of_two: on_cuda.py copied what `+=` should have changed. It has been mended.
- broken_read_when_it_exists: whether a rank reads too early depends on time. It was found in a second run.
- broken_experts_exchanged_on_gloo, hard_experts_exchanged_on_gloo: gloo has no all_to_all in torch 2.11.
- hard_pipeline_by_hand: with seven scripts at a time, a rank began 12 s later than another, which wasted-time reports.
- broken_statistics_of_each_rank: its model is not wrapped, so on_cuda.py moves its parameters but not its statistics, and BatchNorm
  updates copies of these. Emulated GPUs behave the same.
- broken_rest_never_divided, on two GPUs: clipping divided one step by 2.03, which the check took for a division on purpose. It is found
  since that was mended.
- hard_rollouts_of_rank_zero: on_cuda.py leaves what a generator draws on the CPU, so rank 0 sends by gloo what rank 1 expects by NCCL.
- checkpoint-load is said of scripts of checkpoint-race: they load without map_location, which is a mistake only on GPUs.
"""
_MACHINE = """import platform, torch
gpus = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
print(f"torch {torch.__version__}, {', '.join(gpus) or 'no GPU'}, Linux {platform.release()}")"""


def main() -> None:
    """Run what was named, and write the results and the page."""
    options = _options()
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for where in options.where:
        shape = options.options or SHAPES.get(where, "")
        name = f"{where} {shape}".strip()
        known = results.get(name, {}).get("scripts", {}) if options.script or options.check else {}
        results[name] = {"machine": _machine(), "scripts": known}
        chosen = [each for each in examples(options.check) if not options.script or each.name in options.script]
        more = shlex.split(shape)
        for outcome in run_examples(chosen, jobs=options.jobs, quick=True, gpus=GPUS[where], options=more):
            said, error = sorted(outcome.said), outcome.error[:300]
            results[name]["scripts"][outcome.example.name] = {"said": said, "right": outcome.is_right, "error": error}
            print("✔" if outcome.is_right else "✘", name, outcome.example.name, *said, error, flush=True)
            if not outcome.is_right:
                print(*outcome.details, outcome.error, sep="\n    ", flush=True)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(page(results))


def page(results: dict[str, Any]) -> str:
    """Return the table of checks, and each script that was not judged alike everywhere."""
    head = " | ".join(["check", *results])
    lines = [
        "# The checks on GPUs",
        "",
        "`python -m bench.gpu_zoo` wrote this page. It gives the scripts of tests/zoo that `composesim check` judged rightly,",
        "with four ranks on two nodes unless the column says otherwise: on the CPU as they are, on GPUs with models and",
        "batches moved there (tests/zoo/site-packages/on_cuda.py).",
        "",
        *(f"- {name}: {each['machine']}" for name, each in results.items()),
        "",
        f"| {head} |",
        f"|---{'|---' * len(results)}|",
        *(
            f"| {' | '.join([check, *(_share(each, check + '/') for each in results.values())])} |"
            for check in CHECK_IDS
        ),
        f"| {' | '.join(['all', *(_share(each, '') for each in results.values())])} |",
        "",
        "## Differences",
        "",
        f"| script | {' | '.join(results)} |",
        f"|---{'|---' * len(results)}|",
    ]
    for script in sorted({script for each in results.values() for script in each["scripts"]}):
        found = [each["scripts"].get(script) for each in results.values()]
        judged = [each for each in found if each]
        if any(not each["right"] or each["said"] != judged[0]["said"] for each in judged):
            lines.append(f"| {script} | {' | '.join(map(_told, found))} |")
    return "\n".join([*lines, "", NOTES])


def _share(result: dict[str, Any], prefix: str) -> str:
    judged = [each["right"] for script, each in result["scripts"].items() if script.startswith(prefix)]
    return f"{sum(judged)} of {len(judged)}" if judged else "–"


def _told(found: dict[str, Any] | None) -> str:
    if found is None:
        return "–"
    words = ", ".join(found["said"]) or "nothing"
    error = " ".join(found["error"].split())[:160].replace("|", "¦")
    return ("" if found["right"] else "✘ ") + words + (f" ({error})" if error else "")


def _machine() -> str:
    return subprocess.run([sys.executable, "-c", _MACHINE], capture_output=True, text=True, check=True).stdout.strip()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_zoo", description=__doc__)
    parser.add_argument("where", nargs="*", default=list(GPUS), help=f"{', '.join(GPUS)} (default: all)")
    parser.add_argument(
        "--check", action="append", default=[], metavar="ID", help="judge only the scripts of this check"
    )
    parser.add_argument(
        "--script", action="append", default=[], metavar="CHECK/NAME", help="judge only this script again"
    )
    parser.add_argument("--options", default="", metavar="OPTIONS", help="more options for `composesim check`")
    parser.add_argument(
        "--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), metavar="N", help="scripts at a time"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
