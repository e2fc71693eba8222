"""Tracebacks name the user's line, and fold what libraries add."""

from __future__ import annotations

from compose_sim.core.report.report import Place
from compose_sim.core.report.tracebacks import folded, raised_at

SITE = "/home/me/.venv/lib/python3.11/site-packages"
TRACEBACK = f"""Traceback (most recent call last):
  File "/work/train.py", line 10, in <module>
    model(batch).backward()
    ^^^^^
  File "{SITE}/torch/nn/modules/module.py", line 1778, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "{SITE}/torch/nn/modules/linear.py", line 134, in forward
    return F.linear(input, self.weight, self.bias)
  File "/work/layers.py", line 3, in scaled
    return 1 / 0
  File "/usr/lib/python3.11/json/decoder.py", line 5, in decode
    raise JSONDecodeError()
ZeroDivisionError: division by zero"""


def test_neighboring_frames_of_libraries_are_one_line() -> None:
    assert folded(TRACEBACK).splitlines() == [
        "Traceback (most recent call last):",
        '  File "/work/train.py", line 10, in <module>',
        "    model(batch).backward()",
        "    ^^^^^",
        "  … 2 frames in torch",
        '  File "/work/layers.py", line 3, in scaled',
        "    return 1 / 0",
        "  … 1 frame in Python",
        "ZeroDivisionError: division by zero",
    ]


def test_text_without_a_traceback_stays_as_it_is() -> None:
    text = "rank 0 waits:\n    at train.py\nrank 1 has ended"
    assert folded(text) == text


def test_the_innermost_line_of_the_user_is_named() -> None:
    assert raised_at(TRACEBACK) == Place(file="/work/layers.py", line=3)
    chained = f"{TRACEBACK}\n\nDuring handling of the above exception, another exception occurred:\n\n"
    chained += 'Traceback (most recent call last):\n  File "/work/train.py", line 12, in <module>\nValueError'
    assert raised_at(chained) == Place(file="/work/train.py", line=12)
    assert raised_at("no traceback") is None
