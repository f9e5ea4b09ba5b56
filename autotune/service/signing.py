"""Keys, and signed tables made from exported folders. Needs the package `cryptography`."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from ..export.manifest import check_files
from ..files.errors import UsageError
from ..files.output_file import DISK_FULL, disk_full
from ..files.user_file import read_file
from ..runtime.service import table_server
from ..runtime.service.table_server import FORMAT, VERSION, FileSum, Signed, Statement
from ..runtime.table.gpu_models import GpuModel
from ..runtime.table.table import CUBIN_FILE, TABLE_FILE, Table
from ..store import ChannelKey

PUBLIC_ENDING = ".pub"
_MOST_BYTES = 1 << 16  # of a key's file
_MAKE_ONE = "make one with `autotune tables key`"


class NewArtifact(NamedTuple):
    """A table that was signed: `files` are what is signed, the table and its cubins."""

    address: str
    channel: ChannelKey
    files: tuple[bytes, bytes, bytes]
    facts: dict[str, Any]


class SigningKey:
    """A private key, from a file that only its owner may read."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()

    @classmethod
    def make(cls, path: Path) -> SigningKey:
        """A new key in a new file, and its public key beside it. Raises UsageError if the file cannot be
        made, EnvironmentProblem where the disk is full; then there is none."""
        key = Ed25519PrivateKey.generate()
        text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        made = cls(key)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(text)
                path.with_name(path.name + PUBLIC_ENDING).write_text(f"{made.public}\n", encoding="ascii")
            except OSError:
                path.unlink()
                raise
        except OSError as error:
            if error.errno in DISK_FULL:
                raise disk_full(path, error) from error
            raise UsageError(f"no key can be made in {path} ({error.strerror}); name a new file") from error
        return made

    @classmethod
    def read(cls, path: Path) -> SigningKey:
        """Raises UsageError for what is no such key, or a file that others may read."""
        if not path.exists():
            raise UsageError(f"no key at {path}; {_MAKE_ONE}")
        content = read_file(path, "key", _MOST_BYTES)
        if table_server.PUBLIC.fullmatch(content.decode("latin-1").strip()):
            raise UsageError(f"{path} is a public key; name the private one, made with it, that signs")
        try:
            key = load_pem_private_key(content, None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise UsageError(f"{path} cannot be read as a key ({error}); {_MAKE_ONE}") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise UsageError(f"{path} is no Ed25519 key; {_MAKE_ONE}")
        if path.stat().st_mode & 0o077:
            raise UsageError(f"others may read the key {path}; keep it to its owner: chmod 600 {path}")
        return cls(key)

    def sign(self, statement: Statement) -> Signed:
        text = json.dumps(asdict(statement), sort_keys=True)
        return Signed(text, self._key.sign(table_server.message(text)).hex(), self.public)


def signed_tables(
    folder: Path, key: SigningKey, *, has_run: bool, only: Path | None = None
) -> Iterator[NewArtifact]:
    """The tables of an exported folder, or the one that lies in `only`, each checked and signed. `has_run`:
    its kernels were verified on a GPU, too. Raises DispatchError where the folder is damaged."""
    for model in check_files(folder).models:
        if only not in (None, model.folder):
            continue
        table, cubins = ((model.folder / name).read_bytes() for name in (TABLE_FILE, CUBIN_FILE))
        signed = key.sign(_state(model.table, table, cubins, "kernels" if has_run else "files"))
        yield received((signed.render(), table, cubins), frozenset({key.public}))


def _state(found: Table, table: bytes, cubins: bytes, verified: str) -> Statement:
    """The statement on a table and its cubins."""
    environment, files = found.environment, (FileSum.of(table), FileSum.of(cubins))
    times = environment.driver_version, environment.cublas_version, found.created_at
    return Statement(FORMAT, VERSION, *GpuModel.of_table(found), *times, verified, *files)


def received(files: tuple[bytes, bytes, bytes], keys: frozenset[str]) -> NewArtifact:
    """A signed table from anywhere. Raises DispatchError unless it is signed by one of these keys and is as
    it was signed."""
    signed = table_server.parse_signed(files[0])
    statement = table_server.verified(signed, keys)
    found = table_server.checked_table(statement, *files[1:])
    channel = ChannelKey(*statement.gpu_model, statement.driver, statement.cublas)
    return NewArtifact(signed.address, channel, files, {"verified": statement.verified, **facts_of(found)})


def facts_of(table: Table) -> dict[str, Any]:
    """What lists tell of a table. `gain`: the tuned shapes' geometric mean over cuBLAS."""
    ratios = [e.cublas_us / e.ranked[0].time_us for e in table.entries if e.cublas_us and e.ranked]
    gain = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None
    return {
        "num_shapes": len(table.entries),
        "num_kernels": len(table.kernels),
        "gain": gain,
        "is_recorded": table.is_recorded,
        "created_at": table.created_at,
    }
