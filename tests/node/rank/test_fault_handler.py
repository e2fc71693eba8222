"""A fault that arrives while composesim's own code runs happens in the script's code, and is not lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.builders import ROOT

# The signal arrives while an iterator of ours comes to its end.
SCRIPT = """
import os, signal, sys
from pathlib import Path
from compose_sim.node.rank import fault_handler
from compose_sim.node.shared import fault_note
from compose_sim.node.shared.event_log import EventLog

log = EventLog(Path(sys.argv[1]), run="r", node="node-0")
fault_handler.install(log)
note = fault_note.file_of(log, os.getpid())
note.parent.mkdir()
note.write_text('{"action": "raise", "id": "fault-0"}')
source = '''
class Batches:
    def __iter__(self):
        return self

    def __next__(self):
        signal.raise_signal(number)
        raise StopIteration
'''
ours = {"signal": signal, "number": fault_note.SIGNAL}
exec(compile(source, fault_handler.OUR_FOLDER + "rank/any.py", "exec"), ours)

def script():
    for _ in ours["Batches"]():
        pass
    return "went on"

try:
    print(script())
except fault_handler.InjectedFault as error:
    print(error, error.__traceback__.tb_next.tb_frame.f_code.co_name)
"""


def test_an_exception_at_the_end_of_an_iterator_of_ours_is_not_lost(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path], capture_output=True, text=True, cwd=ROOT, timeout=60
    )

    assert done.stdout == "raised on purpose (fault-0) script\n", done.stderr
