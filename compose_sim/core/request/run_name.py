"""Define the names that runs may have. Commands that only read a run need this pattern, and not pydantic."""

from __future__ import annotations

import re

RUN_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")
