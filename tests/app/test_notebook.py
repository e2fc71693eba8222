"""`%%ranks` runs a cell on several ranks in a real Jupyter kernel, and shows their outputs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

from compose_sim.app.notebook import _arguments
from compose_sim.errors import SpecError
from tests.builders import PATIENCE_S

SUM = """%%ranks 2
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([1.0 + dist.get_rank()])
dist.all_reduce(total)
print("<b>", dist.get_rank(), total.item())
dist.destroy_process_group()
"""
FAILING = "%%ranks 2\nimport os\nprint(1 / (1 - int(os.environ['RANK'])))\n"

HANGING = """%%ranks 2
import torch, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    dist.all_reduce(torch.ones(1))
else:
    dist.recv(torch.ones(1), src=0)
"""


@pytest.mark.train
def test_a_cell_runs_on_two_ranks(tmp_path: Path) -> None:
    manager, client = start_new_kernel(cwd=str(tmp_path))
    try:
        assert run_cell(client, "%load_ext composesim") == {}
        shown = run_cell(client, SUM)
        failed = run_cell(client, FAILING)
        wrong = client.execute_interactive("%%ranks two\n1", timeout=PATIENCE_S, output_hook=lambda _: None)["content"]
        hung = run_cell(client, HANGING)
        waited = run_cell(client, "_.report.timings.total_s - _.report.timings.rendezvous_s")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)

    lines = [line for line in shown["text/plain"].splitlines() if "[Gloo]" not in line]  # which torch 2.9 prints
    assert wrong["ename"] == "UsageError"  # which IPython prints without a traceback
    assert "%%ranks 4" in wrong["evalue"]
    assert lines == ["rank 0 | <b> 0 3.0", "rank 1 | <b> 1 3.0"]
    assert shown["text/html"].count("<th") == 2
    assert "&lt;b&gt; 0 3.0</pre>" in shown["text/html"]
    assert "rank 0 | 1.0" in failed["text/plain"]
    assert "ZeroDivisionError" in failed["text/html"]
    assert "<cell>" in failed["text/plain"]
    assert (
        "hung: rank 0 waits in all_reduce #1 (<cell>, line 4), while rank 1 waits in recv (<cell>, line 6)"
        in hung["text/plain"]
    )
    assert 15 <= float(waited["text/plain"]) < 60  # where other runs end when ranks wait for each other


def run_cell(client: Any, code: str) -> dict[str, str]:
    """Return the value of a cell, by MIME type."""
    data: dict[str, str] = {}

    def output(message: dict[str, Any]) -> None:
        if message["msg_type"] == "execute_result":
            data.update(message["content"]["data"])

    reply = client.execute_interactive(code, timeout=PATIENCE_S, output_hook=output)
    assert reply["content"]["status"] == "ok", reply["content"]
    return data


@pytest.mark.parametrize(
    ("line", "values"),
    [("4", (4, 1, "local")), ("4 --nodes 2", (4, 2, "local")), ("2 --engine docker", (2, 1, "docker"))],
)
def test_the_line_of_the_cell(line: str, values: tuple[int, int, str]) -> None:
    assert _arguments(line) == values


@pytest.mark.parametrize("line", ["", "four", "4 --nodes", "4 --nodes 3", "0", "4 --node 2", "4 --nodes 0"])
def test_a_wrong_line_shows_the_right_ones(line: str) -> None:
    with pytest.raises(SpecError) as error:
        _arguments(line)

    assert error.value.hint.startswith("%%ranks 4")
