"""A fault that arrives in composesim's own code, or where Python ignores errors, happens in the script's code, and is not lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import ROOT

BEGIN = """
import gc, os, signal, sys, weakref
from pathlib import Path
from compose_sim.node.rank import fault_handler
from compose_sim.node.shared import fault_note
from compose_sim.node.shared.event_log import EventLog

log = EventLog(Path(sys.argv[1]), run="r", node="node-0")
fault_handler.install(log)
note = fault_note.file_of(log, os.getpid())
note.parent.mkdir()
note.write_text('{"action": "raise", "id": "fault-0"}')
"""
END = """
try:
    print(script())
except fault_handler.InjectedFault as error:
    print(error, error.__traceback__.tb_next.tb_frame.f_code.co_name)
"""
AT_THE_END_OF_AN_ITERATOR_OF_OURS = """
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
"""
IN_A_CALLBACK_OF_THE_GARBAGE_COLLECTOR = """
def collected(phase, info):
    signal.raise_signal(fault_note.SIGNAL)

def script():
    gc.callbacks.append(collected)
    try:
        gc.collect()
        return "went on"
    finally:
        gc.callbacks.clear()
"""
IN_A_DESTRUCTOR = """
class Held:
    def __del__(self):
        signal.raise_signal(fault_note.SIGNAL)

def script():
    Held()
    return "went on"
"""
IN_A_CALLBACK_OF_A_WEAK_REFERENCE = """
def remove(_):
    signal.raise_signal(fault_note.SIGNAL)

def script():
    held = type("Held", (), {})()
    reference = weakref.ref(held, remove)
    del held
    return "went on"
"""


@pytest.mark.parametrize(
    "script",
    [
        AT_THE_END_OF_AN_ITERATOR_OF_OURS,
        IN_A_CALLBACK_OF_THE_GARBAGE_COLLECTOR,
        IN_A_DESTRUCTOR,
        IN_A_CALLBACK_OF_A_WEAK_REFERENCE,
    ],
    ids=["iterator", "garbage-collector", "destructor", "weak-reference"],
)
def test_an_exception_is_raised_where_it_is_not_lost(tmp_path: Path, script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + script + END, tmp_path], capture_output=True, text=True, cwd=ROOT, timeout=60
    )

    assert done.stdout == "raised on purpose (fault-0) script\n", done.stderr
