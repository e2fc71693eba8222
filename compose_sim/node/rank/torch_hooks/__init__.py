"""Patch torch: the only way to do so outside `emulate/`.

A patch belongs to the feature that its function's module implements. It is applied only if torch has every private name that the
feature needs, as `private_names.py` lists them. If it raises, the feature is switched off: a script never sees that exception.
"""

from __future__ import annotations

from typing import Any, Callable

from ...shared import import_hooks
from ...shared.frames import describe_with_our_line
from . import features, private_names
from .features import feature_of


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
