#!/usr/bin/env python3
"""Builds the image of the Dockerfile where no Docker engine runs, and tries it as its users would.

    sudo python3 docker/without_engine.py        # Debian, Ubuntu: apt install buildah mmdebstrap

Buildah reads the Dockerfile and .dockerignore as they are and runs every step by chroot. No engine, no
registry and no container runtime is needed. A bare Debian tree stands in for the base image that FROM
names. The Python of that tree is another one (3.13 in trixie) and lies in /usr/bin; all else is what
`docker build` does.

The build uses the pip settings of this machine, with the files and folders that they name. Everything lies in
a temporary folder (about 2 GiB), or in --folder, where the next run finds the Debian tree again.
"""

from __future__ import annotations

import argparse
import ast
import configparser
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
BASE, IMAGE = "localhost/stand-in", "localhost/autotune"
PACKAGES = "python3,python3-venv,ca-certificates"  # what the base image has beyond Debian's smallest
STRANGER = 12345  # a user without a name and without a home
FILE_URL = "file://"
TOOLS = ("mmdebstrap", "buildah")

SEARCH = ("search", "--gpu", "auto", "--shape", "4096", "--seconds", "5")
# As the user that the image names, in the image's own folder.
AS_NAMED: tuple[tuple[str, ...], ...] = ((), ("doctor",), SEARCH, ("trials", "best"))
# As a user whom the image does not know, in a folder of that user.
AS_STRANGER = (SEARCH, ("export-table",), ("report",), ("doctor",))
LEFT_BY_STRANGER = ("autotune.db", "sgemm_dispatch/table.json", "report.html")


class Failed(Exception):
    """A step went wrong; the message says which."""


def call(*command: str | Path, quiet: bool = False) -> str:
    """Run a command. Its output is shown, or returned where `quiet`. Raises Failed."""
    words = [str(word) for word in command]
    done = subprocess.run(words, stdout=subprocess.PIPE if quiet else None, text=True, check=False)
    if done.returncode:
        raise Failed(f"{' '.join(words)} exits {done.returncode}")
    return done.stdout or ""


def pip_settings(listed: str) -> configparser.ConfigParser:
    """What `pip config list` prints, as one file: the environment's settings win over those of files."""
    settings = configparser.ConfigParser(interpolation=None)
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        section = "global" if section == ":env:" else section
        if not settings.has_section(section):
            settings.add_section(section)
        settings[section][key] = ast.literal_eval(value)
    return settings


def local_paths(settings: configparser.ConfigParser) -> list[Path]:
    """Files and folders of this machine that pip's settings name; an index has its packages beside it."""
    words = [
        word
        for section in settings.sections()
        for value in settings[section].values()
        for word in value.split()
    ]
    indexes = {Path(word.removeprefix(FILE_URL)).parent for word in words if word.startswith(FILE_URL)}
    named = {Path(word) for word in words if word.startswith("/")}
    return sorted(path for path in (named | indexes) - {Path("/")} if path.exists())


def pip_mounts(folder: Path) -> list[str]:
    """Arguments of `buildah build` that give its steps this machine's pip settings."""
    listed = call(sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list", quiet=True)
    settings = pip_settings(listed)
    file = folder / "pip.conf"
    with file.open("w", encoding="utf-8") as out:
        settings.write(out)
    mounts = [f"{file}:/etc/pip.conf:ro", *(f"{path}:{path}:ro" for path in local_paths(settings))]
    return [word for mount in mounts for word in ("--volume", mount)]


@dataclass(frozen=True)
class Workshop:
    """A folder with buildah's storage in it."""

    folder: Path

    def buildah(self, command: str, *words: str | Path, quiet: bool = False) -> str:
        """One buildah command. Raises Failed."""
        storage = ("--root", self.folder / "storage", "--runroot", self.folder / "run")
        return call("buildah", *storage, command, *words, quiet=quiet)

    def make_base(self, suite: str, mirrors: Iterable[str]) -> None:
        """The image that stands in for the one that FROM names."""
        tree = self.folder / f"{suite}.tar"
        if not tree.exists():
            part = tree.with_suffix(".part.tar")
            call("mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", suite, part, *mirrors)
            part.rename(tree)
        container = self.buildah("from", "scratch", quiet=True).strip()
        self.buildah("add", "--quiet", container, tree, "/")
        self.buildah("commit", "--quiet", "--rm", container, BASE)

    def build(self) -> None:
        """Run the Dockerfile's steps."""
        settings = pip_mounts(self.folder)
        self.buildah(
            "build", "--from", BASE, "--pull-never", "--isolation", "chroot", "--network", "host",
            *settings, "--tag", IMAGE, REPOSITORY,
        )  # fmt: skip

    def start(self) -> Container:
        """A fresh container of the image."""
        name = self.buildah("from", "--pull-never", IMAGE, quiet=True).strip()
        return Container(self, name)


@dataclass(frozen=True)
class Container:
    """A container, which lives until its workshop goes."""

    workshop: Workshop
    name: str

    def _configured(self, what: str) -> list[str]:
        """A list that the image states: Entrypoint or Cmd."""
        known = json.loads(self.workshop.buildah("inspect", self.name, quiet=True))
        return known["OCIv1"]["config"].get(what) or []

    def run(self, *arguments: str, options: Iterable[str] = ()) -> None:
        """As `docker run OPTIONS IMAGE ARGUMENTS`: ENTRYPOINT with the arguments, or CMD. Raises Failed."""
        words = self._configured("Entrypoint") + (list(arguments) or self._configured("Cmd"))
        print("\n$", *("docker run", *options, "autotune", *arguments), flush=True)
        self.workshop.buildah("run", "--isolation", "chroot", *options, self.name, "--", *words)


def try_as_named(workshop: Workshop) -> None:
    """The image as it is: no mount, no user."""
    container = workshop.start()
    for arguments in AS_NAMED:
        container.run(*arguments)


def try_as_stranger(workshop: Workshop) -> None:
    """The image as its first lines say: a mounted folder, and that folder's owner. Raises Failed."""
    work = workshop.folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    os.chown(work, STRANGER, STRANGER)
    options = ("--volume", f"{work}:/work", "--user", f"{STRANGER}:{STRANGER}")
    container = workshop.start()
    for arguments in AS_STRANGER:
        container.run(*arguments, options=options)
    for name in LEFT_BY_STRANGER:
        if not (work / name).is_file() or (work / name).stat().st_uid != STRANGER:
            raise Failed(f"{work / name} is missing, or does not belong to the user who ran the command")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--suite", default="trixie", help="a Debian suite with Python >= 3.11 (%(default)s)")
    parser.add_argument(
        "--mirror", action="append", default=[], help="as mmdebstrap takes it; Debian's own without it"
    )
    parser.add_argument(
        "--folder", type=Path, help="keep everything here, and use a tree that is here already"
    )
    options = parser.parse_args()
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        parser.error(f"{' and '.join(missing)} not found; Debian, Ubuntu: apt install {' '.join(missing)}")
    if os.geteuid() != 0:
        parser.error("needs root: the steps of the Dockerfile change users; run it with sudo")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="autotune-image-") as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        workshop = Workshop(folder)
        try:
            workshop.make_base(options.suite, options.mirror)
            workshop.build()
            try_as_named(workshop)
            try_as_stranger(workshop)
        except Failed as error:
            print(f"\n{error}", file=sys.stderr)
            return 1
    print(
        f"\nThe Dockerfile builds and its image works ({time.monotonic() - started:.0f} s, {options.suite})."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
