"""Compose file, units, scripts and jobs of examples/service: they parse, and name options that exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from autotune.cli.app import app

FOLDER = Path(__file__).resolve().parents[2] / "examples/service"
MANUAL = FOLDER.parents[1] / "docs/manual/service.md"
UNITS = sorted(FOLDER.glob("*.service"))


def documents(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def commands() -> list[list[str]]:
    """What is run, without `autotune`."""
    compose = [one["command"] for one in documents("compose.yaml")["services"].values() if "command" in one]
    lines = [documents("rayjob.yaml")["spec"]["entrypoint"]]
    texts = [path.read_text(encoding="utf-8") for path in (*UNITS, FOLDER / "worker.sbatch")]
    lines += [
        found for text in texts for found in re.findall(r"^(?:ExecStart=|exec srun ).*", text, re.MULTILINE)
    ]
    manual = MANUAL.read_text(encoding="utf-8")
    lines += re.findall(r"^    (?:AUTOTUNE_\S+ )*(autotune .*)$", manual, re.MULTILINE)
    message = [shlex.split(line.rpartition("autotune ")[2] if "srun" in line else line) for line in lines]
    cut = [
        line[next((at + 1 for at, word in enumerate(line) if word.endswith("autotune")), 0) :]
        for line in message
    ]
    return [[*map(str, one)] for one in [*compose, *cut]]


@pytest.mark.parametrize("words", commands(), ids=lambda words: " ".join(words[:2]))
def test_every_command_has_these_options(words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    known = {name for one in command.params for name in one.opts}
    named = {word.partition("=")[0] for word in rest if word.startswith("--")}
    assert named <= known, words


def test_the_compose_file_has_what_a_team_needs() -> None:
    compose = documents("compose.yaml")
    services = compose["services"]
    assert set(services) == {"db", "server", "worker"}
    assert services["server"]["ports"] == ["127.0.0.1:8571:8571"]  # a proxy has the certificate
    for service in services.values():
        assert set(service.get("secrets", ())) <= set(compose["secrets"])
        assert "POSTGRES_PASSWORD" not in service.get("environment", {})  # it is a secret
    assert services["worker"]["depends_on"] == {"db": {"condition": "service_healthy"}}


def test_the_ray_job_is_one() -> None:
    job = documents("rayjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert {one["name"] for one in container["volumeMounts"]} <= {one["name"] for one in pod["volumes"]}
    assert groups[1]["minReplicas"] <= groups[1]["replicas"] <= groups[1]["maxReplicas"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for unit in UNITS:  # with a program that is there
        text = re.sub(
            r"^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text(encoding="utf-8"), flags=re.MULTILINE
        )
        (tmp_path / unit.name).write_text(text.replace("User=autotune", "User=root"), encoding="utf-8")
    paths = [str(path) for path in sorted(tmp_path.iterdir())]
    done = subprocess.run(["systemd-analyze", "verify", *paths], capture_output=True, text=True, check=False)
    assert len(paths) == 2 and (done.returncode, done.stderr) == (0, "")


def test_bash_takes_the_script_of_slurm() -> None:
    subprocess.run(["bash", "-n", str(FOLDER / "worker.sbatch")], check=True)
    directives = re.findall(
        r"^#SBATCH (--[\w-]+)=?", (FOLDER / "worker.sbatch").read_text("utf-8"), re.MULTILINE
    )
    assert {"--nodes", "--ntasks-per-node", "--gpus-per-node", "--time", "--signal", "--requeue"} <= set(
        directives
    )
