"""List the services that can run beside the nodes, and validate `--with NAME[=VALUE]`."""

from __future__ import annotations

from compose_sim.core.spelling import did_you_mean

# Name -> what VALUE is, or "" if the service takes none; in the order in which links are printed.
VALUES = {"jupyter": "", "tensorboard": "a folder of event files", "prometheus": "an image", "grafana": "an image"}
BUILT_IN = tuple(VALUES)


def check_service(text: str) -> str:
    """Return `text` if it is a valid `NAME` or `NAME=VALUE`; raise ValueError otherwise."""
    name, equals, value = text.partition("=")
    if name not in VALUES:
        raise ValueError(f"there is no service '{name}'{did_you_mean(name, BUILT_IN)}")
    takes = VALUES[name]
    if equals and not (takes and value):
        raise ValueError(f"'{text}': {name} takes {takes or 'no value'}" + (" after the =" if takes else ""))
    return text
