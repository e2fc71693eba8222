"""Judge the scripts of tests/zoo on the CPU, on emulated GPUs and on real ones, and write gpu-zoo.md: `python -m bench.gpu_zoo`.

Each name of WHERE runs all scripts once and replaces its results in gpu-zoo.json; the page is written from all of them,
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

from compose_sim.core.request.check_ids import IDS
from tests.zoo.runner import examples, run_examples

RESULTS, PAGE = (Path(__file__).with_name(f"gpu-zoo.{kind}") for kind in ("json", "md"))
GPUS = {"cpu": "", "emulated": "emulated", "real": "all", "shared": "0"}
SHAPES = {"shared": "--nodes 4 --nproc-per-node 1"}  # NCCL refuses two ranks of a node on one GPU
NOTES = """With NCCL, ranks that issue different collectives hang where gloo raises an error, so `hang` is said as well.

- hard_slow_download, hard_slow_samples and right_early_stop allow a wait of 4 s, and 16 s before the first step. With 18 runs
  of four ranks at a time on one GPU, NCCL's first collective took longer.
- broken_shards_by_hand and broken_every_node_reports: with one rank per node, LOCAL_RANK is 0 everywhere, on the CPU too.
- hard_joined and broken_parts_by_hand were judged wrongly on the CPU too, with four nodes of one rank. Both are mended.
- checkpoint-load: the scripts for the CPU load without map_location, which the check rightly says of them on GPUs.
- wasted-time is said of two scripts on emulated GPUs; on the CPU they were not run at that commit.
- broken_mean_of_own_tokens on emulated GPUs was not run again after the replay of batches from a second GPU was mended.
- The checks without numbers in a column are newer than that run.
- broken_dropout: the check did not read the GPU's generator. It does now, which was not measured again.
- broken_seed_per_rank: its samples lie on the GPU with noise that the GPU draws, and such draws of a data set were not read. They
  are now.
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
        known = results.get(name, {}).get("scripts", {}) if options.script else {}
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
        *(f"| {' | '.join([check, *(_share(each, check + '/') for each in results.values())])} |" for check in IDS),
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
