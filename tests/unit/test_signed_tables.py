"""Tables that are signed: nothing unsigned or altered is read; what is current follows from events."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from store_cases import H200
from table_cases import make_table, write_table

from autotune.files.errors import DispatchError, EnvironmentProblem, UsageError
from autotune.runtime.service.table_server import parse_signed, read_artifact, read_keys, write_artifact
from autotune.service.signing import NewArtifact, SigningKey, received, signed_tables
from autotune.service.table_source import packed_files, unpacked_files
from autotune.store import Channel, ChannelKey, Store, Usage
from autotune.store.artifacts import best_channel

KEY_OF = ChannelKey("NVIDIA H200", (9, 0), H200.driver_version, H200.cublas_version)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    return SigningKey.make(tmp_path_factory.mktemp("keys") / "team.key")


@pytest.fixture(scope="module")
def new(key: SigningKey, tmp_path_factory: pytest.TempPathFactory) -> NewArtifact:
    folder = write_table(make_table(), tmp_path_factory.mktemp("exported") / "sgemm_one")
    (made,) = signed_tables(folder, key, has_run=False)
    return made


@pytest.fixture
def artifact(new: NewArtifact, tmp_path: Path) -> Path:
    signed, *files = new.files
    return write_artifact(tmp_path, parse_signed(signed), *files)


def test_what_is_signed_is_read_back(artifact: Path, key: SigningKey, new: NewArtifact) -> None:
    statement, table, code = read_artifact(artifact, {key.public})
    assert artifact.name == new.address and new.channel == KEY_OF
    assert (statement.verified, table.environment.gpu_name) == ("files", "NVIDIA H200")
    assert len(dict(code)) == len({kernel.sha256 for kernel in table.kernels})


def test_other_keys_sign_nothing(artifact: Path, tmp_path: Path) -> None:
    other = SigningKey.make(tmp_path / "other.key")
    for keys in ({other.public}, set[str]()):
        with pytest.raises(DispatchError, match="nobody gave this program"):
            read_artifact(artifact, keys)


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize("name", ["signed.json", "table.json", "cubins.gz"])
def test_one_changed_bit_anywhere_is_refused(name: str, artifact: Path, key: SigningKey) -> None:
    path = artifact / name
    content = path.read_bytes()
    for at in range(0, len(content), max(1, len(content) // 40)):
        path.write_bytes(flipped(content, at))
        with pytest.raises(DispatchError):
            read_artifact(artifact, {key.public})
    path.write_bytes(content)
    read_artifact(artifact, {key.public})


def test_a_statement_by_the_same_key_serves_no_other_files(
    artifact: Path, key: SigningKey, tmp_path: Path
) -> None:
    other = write_table(replace(make_table(), created_at="2026-12-01T00:00:00+00:00"), tmp_path / "sgemm_two")
    shutil.copy(other / "table.json", artifact / "table.json")
    with pytest.raises(DispatchError, match="not what was signed"):
        read_artifact(artifact, {key.public})


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found | {"more": "x"},
        lambda found: {name: text for name, text in found.items() if name != "key"},
        lambda found: found | {"signature": "0" * 127},
        lambda found: found | {"signature": 7},
        lambda found: [found],
    ],
)
def test_what_is_no_signed_table_is_refused(change: Callable[..., object], new: NewArtifact) -> None:
    content = json.dumps(change(json.loads(new.files[0]))).encode()
    with pytest.raises(DispatchError):
        received((content, *new.files[1:]), read_keys(json.loads(new.files[0])["key"]))


def test_without_its_package_nothing_is_taken(
    artifact: Path, key: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cryptography.exceptions", None)
    with pytest.raises(EnvironmentProblem, match="pip install 'cryptography"):
        read_artifact(artifact, {key.public})


def test_keys_are_their_owner_s_and_new(key: SigningKey, tmp_path: Path) -> None:
    path = tmp_path / "a.key"
    made = SigningKey.make(path)
    assert SigningKey.read(path).public == made.public == next(iter(read_keys(str(path) + ".pub")))
    with pytest.raises(UsageError, match="name a new file"):
        SigningKey.make(path)
    path.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        SigningKey.read(path)
    others = tmp_path / "none.key", tmp_path, Path("/dev/zero"), Path(__file__)
    texts = "make one", "is no readable key", "is a device", "make one"
    for other, text in zip(others, texts, strict=True):
        with pytest.raises(UsageError, match=text):
            SigningKey.read(other)
    with pytest.raises(UsageError, match="is a public key; name the private one"):
        SigningKey.read(tmp_path / "a.key.pub")
    for message in ("0" * 63, str(path), "nowhere.pub"):
        with pytest.raises(DispatchError, match="neither a public key"):
            read_keys(message)


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EACCES])
def test_where_no_key_can_be_written_none_is_left(
    fault: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr(Path, "write_text", refuse)
    expected = EnvironmentProblem if fault == errno.ENOSPC else UsageError
    with pytest.raises(expected, match=r"disk is full|Permission denied"):
        SigningKey.make(tmp_path / "a.key")
    assert not [*tmp_path.iterdir()]


def test_a_body_holds_three_files_and_no_more(new: NewArtifact) -> None:
    body = packed_files(new.files)
    assert unpacked_files(body) == new.files
    for wrong in (b"", body[:-1], body + b"x", body[:20], b"\xff" * 40):
        with pytest.raises(UsageError):
            unpacked_files(wrong)


def test_the_current_table_follows_from_what_was_decided() -> None:
    channel = Channel()
    for what, address, current in (
        ("publish", "a", "a"), ("publish", "b", "b"), ("rollback", "b", "a"), ("publish", "c", "c"),
        ("pin", "a", "a"), ("publish", "d", "a"), ("unpin", "a", "d"), ("rollback", "d", "c"),
    ):  # fmt: skip
        channel.take(what, address)  # type: ignore[arg-type]
        assert channel.current == current, (what, address)


def test_a_gpu_gets_the_table_of_its_driver_else_the_latest() -> None:
    def keyed(driver: str, cublas: str = "13.1") -> ChannelKey:
        return KEY_OF._replace(driver=driver, cublas=cublas)

    channels = {keyed("1"): Channel(["a"]), keyed("2"): Channel(["b"]), keyed("3"): Channel()}
    assert [best_channel(channels, keyed(driver)) for driver in "123"] == ["a", "b", "b"]
    assert best_channel(channels, keyed("1")._replace(gpu_name="NVIDIA H100")) is None


def test_the_store_keeps_tables_tokens_and_usage(new: NewArtifact, tmp_path: Path) -> None:
    with Store.open(tmp_path / "a.db") as store:
        kept = store.artifacts()
        assert kept.publish(*new, "me") and not kept.publish(*new, "me")
        assert kept.files(new.address) == new.files and kept.files("0" * 64) is None
        assert kept.channels()[KEY_OF].current == new.address
        with pytest.raises(UsageError, match="nothing was published before"):
            kept.decide("rollback", new.address, "me")
        with pytest.raises(UsageError, match="was published"):
            kept.decide("pin", "0" * 64, "me")
        kept.add_token("laptop", "secret", ["read"])
        with pytest.raises(UsageError, match="is there already"):
            kept.add_token("laptop", "other", ["read"])
        ((found, (name, roles)),) = kept.tokens().items()
        assert (name, roles) == ("laptop", {"read"}) and "secret" not in found
        kept.revoke_token("laptop")
        assert not kept.tokens()
        kept.add_usage([Usage("NVIDIA H200", "64", "modelled", 3, 1.5)] * 2)
        kept.add_usage([Usage("NVIDIA H200", "64", "modelled", 4, 0.5)])
        assert kept.usage() == [Usage("NVIDIA H200", "64", "modelled", 10, 3.5)]
