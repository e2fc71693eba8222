"""The cause of a run is what a launched process raised, with the file and line, not what its launcher says of it."""

from __future__ import annotations

import pytest

from compose_sim.core.state.fold_ranks import describe

SPAWNED = """

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torch/multiprocessing/spawn.py", line 87, in _wrap
    fn(i, *args)
  File "/project/train.py", line 4, in work
    raise ValueError("bad learning rate: -1")
ValueError: bad learning rate: -1
"""
CHAINED = SPAWNED.replace(
    "ValueError: bad learning rate: -1\n",
    """ValueError: bad learning rate: -1

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/project/train.py", line 9, in work
    clean_up()
  File "/venv/lib/python3.11/site-packages/tool/files.py", line 30, in remove
    raise OSError("no such folder")
OSError: no such folder
""",
)
HEAD = """
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_23:07:04
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 15434)
"""
RECORDED = f"""{HEAD}  error_file: /tmp/torchelastic_x/none/attempt_0/1/error.json
  traceback : Traceback (most recent call last):
    File "/venv/lib/python3.11/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 367, in wrapper
      return f(*args, **kwargs)
    File "/project/train.py", line 6, in main
      raise ValueError("bad learning rate: -2")
  ValueError: bad learning rate: -2

============================================================"""
NOT_RECORDED = f"""{HEAD}  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================"""
LOADER = """Caught ValueError in DataLoader worker process 1.
Original Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 374, in _worker_loop
    data = fetcher.fetch(index)
  File "/project/.composesim/runs/one/node/rank/observers/randomness.py", line 51, in fetch
    batch = original(self, index)
  File "/project/data.py", line 5, in __getitem__
    raise ValueError("broken image 5")
ValueError: broken image 5
"""


@pytest.mark.parametrize(
    ("kind", "message", "cause"),
    [
        ("ProcessRaisedException", SPAWNED, "ValueError: bad learning rate: -1 (train.py, line 4)"),
        ("ProcessRaisedException", CHAINED, "OSError: no such folder (train.py, line 9)"),
        ("ChildFailedError", RECORDED, "ValueError: bad learning rate: -2 (train.py, line 6)"),
        ("ChildFailedError", NOT_RECORDED, "ChildFailedError: train.py failed: its rank 1 exited with status 1"),
        ("ChildFailedError", "", "ChildFailedError: the launched program failed: a rank failed"),
        ("ValueError", LOADER, "ValueError: broken image 5 (data.py, line 5)"),
        ("ProcessRaisedException", "Traceback (most recent call last):", "ProcessRaisedException: Traceback (most recent call last)"),
        ("ValueError", "boom", "ValueError: boom"),
        ("ValueError", "", "ValueError"),
    ],
    ids=["spawn", "chained", "recorded", "not recorded", "empty", "loader", "cut off", "plain", "no message"],
)  # fmt: skip
def test_the_cause_is_the_inner_exception(kind: str, message: str, cause: str) -> None:
    assert describe(kind, message) == cause
