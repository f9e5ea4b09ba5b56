"""What makes an exported folder a package that pip installs: `pip install ./sgemm_dispatch`.

Its build leaves no files in the folder, which the next export would treat as the user's: hatchling makes the
wheel elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from ..runtime.table.table import Table
from .model_folders import names_of

FILE = "pyproject.toml"
_DATE = re.compile(r"(\d{4})-0?(\d+)-0?(\d+)T0?(\d+):0?(\d+)")

_TEXT = """\
# Generated: `pip install .` in this folder installs it as {name}.
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "{project}"
version = "{version}"
description = {description}
requires-python = ">=3.11"
dependencies = ["cuda-bindings>=13,<14", "numpy>=2.1"]

[project.optional-dependencies]
dlpack = ["cuda-core>=1.2,<2"]

[tool.hatch.build]
ignore-vcs = true

[tool.hatch.build.targets.wheel]
only-include = ["."]
sources = {{ "" = "{name}" }}
"""


def project_text(tables: Sequence[Table], name: str) -> str:
    """The content of `pyproject.toml`. Its version is the minute of the newest table: a newer export is
    newer."""
    latest = max(tables, key=lambda table: table.created_at)
    made = _DATE.match(latest.created_at)
    version = ".".join(made.groups()) if made else "0"
    project = re.sub("[^A-Za-z0-9]+", "-", name).strip("-") or "sgemm-table"
    description = json.dumps(f"FP32 matrix products tuned for {names_of(tables)} by {latest.made_by}")
    return _TEXT.format(name=name, project=project, version=version, description=description)
