"""Validate a document against the published JSON schema of the Compose Specification, without Docker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from compose_sim.errors import ComposesimError


class InvalidDocumentError(ComposesimError):
    """composesim rendered an invalid Compose document, which is a bug."""

    exit_code = 70


def check_document(text: str, schema: Mapping[str, Any]) -> None:
    """
    Raise InvalidDocumentError if the document violates the schema.

    Services that differ only in the text of their values are validated once, so that a thousand nodes cost as much as one. The
    patterns in the schema apply to names only, and all names are validated.
    """
    import jsonschema  # takes 0.04 s, and only `render` needs it

    document = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    services = document["services"]
    distinct = {_shape(service): name for name, service in services.items()}
    sample = {**document, "services": {name: services[name] for name in distinct.values()}}
    names = {**document, "services": {name: {} for name in services}}
    validator = jsonschema.Draft7Validator(schema)
    for part in (sample, names):
        error = jsonschema.exceptions.best_match(validator.iter_errors(part))
        if error:
            where = ".".join(str(step) for step in error.absolute_path)
            raise InvalidDocumentError(
                f"the rendered document violates the Compose schema at '{where}'", evidence=error.message
            )


def _shape(mapping: Mapping[str, Any]) -> str:
    """Return the keys with the types of their values, which is what the schema distinguishes."""
    return ";".join(f"{key}:{_kind(value)}" for key, value in mapping.items())


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{_shape(value)}}}"
    if isinstance(value, list):
        return f"[{','.join(sorted({_kind(item) for item in value}))}]"
    return type(value).__name__
