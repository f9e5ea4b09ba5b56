"""The project file of an export: what pip reads of it."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest
from table_cases import make_kernel, make_spec, make_table

from autotune.export.package import project_text


@pytest.mark.parametrize(
    ("name", "project"),
    [("sgemm_dispatch", "sgemm-dispatch"), ("_own", "own"), ("größe_2", "gr-e-2"), ("__", "sgemm-table")],
)
def test_names_are_those_of_packages(name: str, project: str) -> None:
    read = tomllib.loads(project_text([make_table(make_kernel("plain", make_spec()))], name))
    assert read["project"]["name"] == project
    assert read["tool"]["hatch"]["build"]["targets"]["wheel"]["sources"] == {"": name}


def test_a_newer_export_is_newer_and_a_gpu_may_have_any_name() -> None:
    table = make_table(make_kernel("plain", make_spec()))
    odd = replace(table.environment, gpu_name='say "GPU" \\ é\n')
    made = [
        tomllib.loads(project_text([replace(table, created_at=at, environment=odd)], "t"))["project"]
        for at in ("2026-11-09T08:05:01+00:00", "2026-11-09T18:05:01+00:00", "some day")
    ]
    assert [one["version"] for one in made] == ["2026.11.9.8.5", "2026.11.9.18.5", "0"]
    assert all('"GPU"' in one["description"] for one in made)
