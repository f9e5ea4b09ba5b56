"""An exported folder is installed by pip, and nothing is left in it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .conftest import INSTALLED, call

pytestmark = [*INSTALLED, pytest.mark.stress]


# Adds the same table for another GPU model.
_ADD = """
import sys
from dataclasses import replace
from pathlib import Path
from autotune.export.package import write_folder
from autotune.runtime.table.gpu_models import load_cubins
from autotune.runtime.table.table import load

folder = Path(sys.argv[1])
table = load(folder)
other = replace(table, environment=replace(table.environment, gpu_name="NVIDIA Another"))
write_folder(other, load_cubins(folder, table), folder, adds=True)
"""


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_an_exported_folder_is_installed(installed: Path, tmp_path: Path) -> None:
    search = ("search", "--gpu", "auto", "--shape", "1024", "--trials", "12", "--quiet")
    export = ("export-table", "--out", "my_table", "--max-kernels", "0")
    call(installed / "autotune", *search, cwd=tmp_path)
    call(installed / "autotune", *export, cwd=tmp_path)
    folder = tmp_path / "my_table"
    call(installed / "python", "-P", "-c", _ADD, folder, cwd=tmp_path)
    before = files_of(folder)
    site = tmp_path / "site"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    call(*pip, "--target", site, folder, cwd=tmp_path)
    assert files_of(folder) == before
    shipped = {name for name in before if "__pycache__" not in name}
    assert shipped <= files_of(site / "my_table")
    external = tmp_path / "elsewhere"
    external.mkdir()
    code = f"import sys; sys.path.insert(0, {str(site)!r}); import my_table as t; "
    code += "print(t.__file__, t.pick(9, 9, 9).how, len(t.tables))"
    text = call(installed / "python", "-P", "-c", code, cwd=external)
    assert text.startswith(str(site)) and text.split()[1] in ("modelled", "nearest", "default")
    assert text.split()[2] == "2"
    call(installed / "autotune", *export, cwd=tmp_path)  # again
