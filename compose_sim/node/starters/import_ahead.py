"""Import what takes long, in a process from which others are forked."""

from __future__ import annotations

import contextlib
import gc
import importlib
import warnings


def import_ahead(*modules: str) -> None:
    """Import modules that scripts need. If one is missing or broken, the script's own import reports it."""
    # The garbage collector finds nothing to free while modules load, and takes a fifth of the time.
    gc.disable()
    with warnings.catch_warnings(), contextlib.suppress(ImportError):
        warnings.simplefilter("ignore")  # the user would not know where these come from
        for module in modules:
            importlib.import_module(module)
    gc.freeze()  # so that a rank's first collection does not touch, and thereby copy, all those pages
    gc.enable()
