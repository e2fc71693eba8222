"""How are templates read? Strictly, as text whose lines stay where they are, through a loader that the caller hands in."""

from __future__ import annotations

import jinja2


def template_environment(loader: jinja2.BaseLoader) -> jinja2.Environment:
    """An environment in which a name that is not there is an error; callers add the filter that quotes for their format."""
    return jinja2.Environment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
