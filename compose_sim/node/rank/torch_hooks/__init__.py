"""Patch torch: the only way to do so outside `emulate/`.

A patch belongs to the feature that its function's module implements. It is applied only if torch has every private name that the
feature needs, as `private_names.py` lists them. If a patch raises, torch's own function runs instead, and the feature is switched
off: a script never sees an exception of a patch.
"""

from __future__ import annotations

import functools
import os
import sysconfig
from types import TracebackType
from typing import Any, Callable

from ...shared import import_hooks
from ...shared.frames import describe_with_our_line, is_ours
from . import features, private_names
from .features import feature_of

_PYTHON = (sysconfig.get_paths()["stdlib"] + os.sep, "<frozen ")


def after_import(name: str, function: Callable[[Any], None], feature: str = "") -> None:
    """Call `function` with this module of torch once it has been imported, or now if it already has.

    It belongs to `feature`, or else to the one that its module implements.
    """
    feature = feature or feature_of(function.__module__)

    def patch(module: Any) -> None:
        if not private_names.has_all(feature, name):
            return
        try:
            function(module)
        except Exception as error:  # noqa: BLE001 - the script must still work
            features.raised(feature, describe_with_our_line(error))

    import_hooks.after_import(name, patch)


def wrap(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace a function of a module or class by the decorated one, which gets the original before the arguments."""
    original = getattr(owner, name)

    def replace_by(function: Callable[..., Any]) -> Callable[..., Any]:
        feature = feature_of(function.__module__)

        @functools.wraps(original)
        def wrapper(*arguments: Any, **options: Any) -> Any:
            if features.is_off(feature):
                return original(*arguments, **options)
            call = _Call(original)
            try:
                return function(call, *arguments, **options)
            except Exception as error:
                if call.raised is error or not _is_of_patch(error):
                    raise
                if call.raised is not None:  # and then the patch itself, which must not hide that
                    features.raised(feature, describe_with_our_line(error))
                    raise call.raised from None
                why = describe_with_our_line(error)
                # A wrong call raises here, too.
                returned = call.result if call.is_over else original(*arguments, **options)
                features.raised(feature, why)
                return returned
            finally:
                call.raised = call.result = None  # else the exception's frames would refer to the exception

        setattr(owner, name, wrapper)
        return function

    return replace_by


class _Call:
    """One call of the original function, to tell its exceptions from those of the patch."""

    __slots__ = ("_function", "is_over", "raised", "result")

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.raised: Exception | None = None
        self.is_over, self.result = False, None

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        try:
            self.result = self._function(*arguments, **options)
        except Exception as error:
            self.raised = error
            raise
        self.is_over = True
        return self.result


def _is_of_patch(error: BaseException) -> bool:
    """Return whether an exception was raised by composesim or by what it called, not by a signal handler or other code of the user."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not (is_ours(file) or file.startswith(_PYTHON) or "/torch/" in file):
            return False
        trace = trace.tb_next
    return not isinstance(error, StopIteration)  # with which a replay ends the iteration over a loader
