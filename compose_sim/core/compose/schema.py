"""Validate a document against the published JSON schema of the Compose Specification, without Docker."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from compose_sim.errors import ComposesimError

_BEFORE_SERVICE = re.compile(r"^(?=  \S)", re.MULTILINE)
# A key, a value that YAML reads as it is written, any other value. Only plain values do not distinguish services.
_QUOTED = re.compile(r'("(?:[^"\\]|\\.)*":)|"[ !#-\[\]-~]*"|("(?:[^"\\]|\\.)*")')


class InvalidDocumentError(ComposesimError):
    """composesim rendered an invalid Compose document, which is a bug."""

    exit_code = 70


def check_document(text: str, schema: Mapping[str, Any]) -> None:
    """
    Raise InvalidDocumentError if the document violates the schema.

    Services that differ only in plain quoted values are parsed and validated once, so that a thousand nodes cost as much as one.
    The patterns in the schema apply to names only, and all names are validated.
    """
    import jsonschema  # takes 0.04 s, and only `render` needs it

    before, header, rest = text.partition("\nservices:\n")
    services, networks, after = rest.partition("\nnetworks:\n")
    blocks = {block.partition(":")[0].strip(): block for block in _BEFORE_SERVICE.split(services) if block.strip()}
    kept = lambda quoted: quoted[1] or quoted[2] or ""  # noqa: E731 - twice as fast as a template of groups
    distinct = {_QUOTED.sub(kept, block).replace(name, ""): block for name, block in blocks.items()}
    sampled = "".join((before, header, *distinct.values(), networks, after))
    sample = yaml.load(sampled, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    of_services = schema["properties"]["services"]
    of_names = {**of_services, "patternProperties": dict.fromkeys(of_services["patternProperties"], True)}
    names = {"services": dict.fromkeys(blocks)}
    for part, rules in ((sample, schema), (names, {"properties": {"services": of_names}})):
        error = jsonschema.exceptions.best_match(jsonschema.Draft7Validator(rules).iter_errors(part))
        if error:
            where = ".".join(str(step) for step in error.absolute_path)
            raise InvalidDocumentError(
                f"the rendered document violates the Compose schema at '{where}'", evidence=error.message
            )
