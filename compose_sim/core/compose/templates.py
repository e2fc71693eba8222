"""Configure Jinja for text files whose line breaks matter."""

from __future__ import annotations

import jinja2


def template_environment(loader: jinja2.BaseLoader) -> jinja2.Environment:
    """Return an environment in which an undefined name is an error. Callers add the quoting filter of their format."""
    return jinja2.Environment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,  # a template is included once per node
    )
