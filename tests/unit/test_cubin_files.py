"""Packed cubins: whatever is done to their files is refused before a driver gets them, and others serve."""

from __future__ import annotations

import gzip
import hashlib
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_cases import code_of, make_kernel, make_spec, make_table, write_older, write_table

from autotune.errors import DispatchError
from autotune.runtime import older_schemas
from autotune.runtime.cubin_files import CubinFiles, load_cubins, packed, unpacked
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.table import load, parse, render
from autotune.strict import Misfit

TABLE = make_table(make_kernel("fast", make_spec(vec_a=4, is_exact=True)))
FAST = TABLE.kernels[0]
BOMB_BYTES = 64 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_table(TABLE, tmp_path / "t")


@given(st.binary(max_size=5000), st.binary(min_size=1, max_size=50))
def test_what_is_packed_is_unpacked_by_its_size_alone(code: bytes, more: bytes) -> None:
    content = packed(code)
    assert unpacked(content, len(code)) == code == gzip.decompress(content)
    assert content == packed(code)
    for size in (len(code) - 1, len(code) + 1):
        if size > 0:
            with pytest.raises(Misfit, match="does not hold"):
                unpacked(content, size)
    for wrong in (content + more, content[: -len(more)], content + content):
        with pytest.raises(Misfit):
            unpacked(wrong, len(code))


def test_the_files_hold_cubins_as_gzip_reads_them(folder: Path) -> None:
    for kernel in TABLE.kernels:
        content = (folder / "cubins" / f"{kernel.sha256}.cubin.gz").read_bytes()
        assert gzip.decompress(content) == code_of(kernel)
        assert kernel.code_bytes == len(code_of(kernel))


def _swapped(path: Path) -> bytes:
    return next(one for one in sorted(path.parent.iterdir()) if one != path).read_bytes()


def _flipped(path: Path) -> bytes:
    content = path.read_bytes()
    return content[:40] + bytes([content[40] ^ 1]) + content[41:]


DAMAGES: dict[str, Callable[[Path], bytes]] = {
    "cut": lambda path: path.read_bytes()[:-1],
    "empty": lambda path: b"",
    "flipped": _flipped,
    "swapped": _swapped,
    "grown": lambda path: path.read_bytes() + b"\0",
    "not packed": lambda path: gzip.decompress(path.read_bytes()),
    "packed otherwise": lambda path: zlib.compress(gzip.decompress(path.read_bytes())),
    "other bytes, of the size": lambda path: packed(gzip.decompress(path.read_bytes())[::-1]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_when_it_is_needed_and_others_serve(folder: Path, damage: str) -> None:
    path = folder / FAST.cubin_file
    path.write_bytes(DAMAGES[damage](path))
    files = CubinFiles(folder, load(folder))
    Dispatcher(folder).pick(512, 512, 512)
    with pytest.raises(DispatchError, match=rf"{FAST.sha256}.cubin.gz is damaged: .*; export"):
        files[FAST.sha256]
    assert files[TABLE.kernels[1].sha256] == code_of(TABLE.kernels[1])
    with pytest.raises(DispatchError, match="is damaged"):
        load_cubins(folder, TABLE)


@pytest.mark.parametrize("stated", [FAST.code_bytes, BOMB_BYTES // 4])
def test_no_more_is_unpacked_than_is_stated(folder: Path, stated: int) -> None:
    """A thousand times what its file takes would come of it."""
    (folder / FAST.cubin_file).write_bytes(packed(bytes(BOMB_BYTES)))
    kernels = (replace(FAST, code_bytes=stated), *TABLE.kernels[1:])
    files = CubinFiles(folder, replace(TABLE, kernels=kernels))
    tracemalloc.start()
    try:
        with pytest.raises(DispatchError, match=f"does not hold {stated} bytes"):
            files[FAST.sha256]
        assert tracemalloc.get_traced_memory()[1] < 3 * stated + (1 << 20)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("code_bytes", [0, -1, (16 << 20) + 1])
def test_a_size_that_no_cubin_has_is_refused(code_bytes: int) -> None:
    with pytest.raises(DispatchError, match=r"kernels\[0\].code_bytes is"):
        parse(render(replace(TABLE, kernels=(replace(FAST, code_bytes=code_bytes), *TABLE.kernels[1:]))))


def test_kernels_that_share_a_cubin_agree_on_its_size() -> None:
    twin = replace(FAST, id="twin")
    assert parse(render(replace(TABLE, kernels=(*TABLE.kernels, twin)))).kernels[-1] == twin
    for other in (None, 7):
        kernels = (*TABLE.kernels, replace(twin, code_bytes=other))
        with pytest.raises(DispatchError, match="share a cubin and say that it has other sizes"):
            parse(render(replace(TABLE, kernels=kernels)))


def test_a_missing_file_is_told_at_once(folder: Path) -> None:
    (folder / FAST.cubin_file).unlink()
    with pytest.raises(DispatchError, match="is not there; export the table again"):
        Dispatcher(folder)


def test_a_program_keeps_its_kernels_when_the_table_is_exported_anew(folder: Path) -> None:
    files = CubinFiles(folder, load(folder))
    write_table(make_table(created_at="later"), folder)
    assert not (folder / FAST.cubin_file).exists()
    assert files[FAST.sha256] == code_of(FAST)


@pytest.mark.parametrize("version", range(1, older_schemas._PACKED))
def test_cubins_of_older_tables_are_read_as_they_are(tmp_path: Path, version: int) -> None:
    folder = write_older(TABLE, version, tmp_path / "t")
    table = load(folder)
    assert {path.suffix for path in (folder / "cubins").iterdir()} == {".cubin"}
    assert load_cubins(folder, table) == {k.sha256: code_of(k) for k in TABLE.kernels}
    assert hashlib.sha256(CubinFiles(folder, table)[FAST.sha256]).hexdigest() == FAST.sha256
    path = folder / "cubins" / f"{FAST.sha256}.cubin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DispatchError, match="SHA-256"):
        CubinFiles(folder, table)[FAST.sha256]
