"""Import modules that take long to load, before other processes are forked."""

from __future__ import annotations

import contextlib
import gc
import importlib
import warnings


def import_ahead(*modules: str) -> None:
    """Import modules that others will need. One that cannot be found is left to a later import; other errors are raised."""
    # The garbage collector finds nothing to free while modules load, and takes a fifth of the time.
    gc.disable()
    try:
        with warnings.catch_warnings(), contextlib.suppress(ImportError):
            warnings.simplefilter("ignore")  # the user would not know where these come from
            for module in modules:
                importlib.import_module(module)
        gc.freeze()  # so that the first collection of a forked process does not touch, and thereby copy, all those pages
    finally:
        gc.enable()
