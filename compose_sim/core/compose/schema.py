"""Does a document obey the Compose Specification? Checked against its published JSON schema, without Docker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from compose_sim.errors import ComposesimError


class InvalidDocumentError(ComposesimError):
    """What composesim rendered is not a Compose document: a bug of ours."""

    exit_code = 70


def check_document(text: str, schema: Mapping[str, Any]) -> None:
    """
    InvalidDocumentError where the document breaks the schema.

    A thousand nodes are one service a thousand times over, in other words: services with the same keys and the same values
    but for their text are checked once. Patterns in the schema bind only names, which are all checked.
    """
    import jsonschema  # 0.04 s, which a run that renders nothing for others need not pay

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
                f"the rendered document breaks the Compose schema at '{where}'", evidence=error.message
            )


def _shape(mapping: Mapping[str, Any]) -> str:
    """The keys with the kinds of their values: what the schema tells apart."""
    return ";".join(f"{key}:{_kind(value)}" for key, value in mapping.items())


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{_shape(value)}}}"
    if isinstance(value, list):
        return f"[{','.join(sorted({_kind(item) for item in value}))}]"
    return type(value).__name__
