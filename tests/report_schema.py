"""Validate reports against the published schema, `templates/report.schema.json`."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from tests.builders import ROOT

SCHEMA_FILE = ROOT / "templates" / "report.schema.json"


def validate_report(report: Any) -> None:
    """Raise ValidationError if JSON values are not a report that this version writes."""
    _validator().validate(report)


def validate_reports_in(project: Path) -> None:
    """Validate what every run of a project has written."""
    for file in project.glob(".composesim/runs/*/report.json"):
        validate_report(json.loads(file.read_text()))


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(json.loads(SCHEMA_FILE.read_text()))
