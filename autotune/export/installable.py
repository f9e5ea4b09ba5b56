"""What makes an exported folder a package that pip installs: `pip install ./sgemm_dispatch`.

Its build leaves no files in the folder, which the next export would treat as the user's: hatchling makes the
wheel elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from ..runtime.table.table import Table
from .model_folders import names_of

FILE = "pyproject.toml"
_TEMPLATE = Path(__file__).with_name("texts") / f"{FILE}.in"
_DATE = re.compile(r"(\d{4})-0?(\d+)-0?(\d+)T0?(\d+):0?(\d+)")


def project_text(tables: Sequence[Table], name: str) -> str:
    """The content of `pyproject.toml`. Its version is the minute of the newest table: a newer export is
    newer."""
    latest = max(tables, key=lambda table: table.created_at)
    made = _DATE.match(latest.created_at)
    version = ".".join(made.groups()) if made else "0"
    project = re.sub("[^A-Za-z0-9]+", "-", name).strip("-") or "sgemm-table"
    description = json.dumps(f"FP32 matrix products tuned for {names_of(tables)} by {latest.made_by}")
    template = _TEMPLATE.read_text(encoding="utf-8")
    return template.format(name=name, project=project, version=version, description=description)
