"""Packed cubins: whatever is done to their file is refused before a driver gets them, and others serve."""

from __future__ import annotations

import gc
import gzip
import os
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_cases import (
    code_of,
    make_kernel,
    make_spec,
    make_table,
    put_packed,
    slices,
    write_table,
)

from autotune.export.package import packed, render
from autotune.files.errors import DispatchError
from autotune.files.strict import Mismatch
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.table.gpu_models import CubinFiles, load_cubins, unpacked
from autotune.runtime.table.table import load, parse

TABLE = make_table(make_kernel("fast", make_spec(vec_a=4, is_exact=True)))
FAST, OTHER = TABLE.kernels[:2]
BOMB_BYTES = 64 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_table(TABLE, tmp_path / "t")


def replaced(path: Path, content: bytes) -> None:
    """As an export, pip or rsync does it: another file of the name."""
    path.with_name("new").write_bytes(content)
    path.with_name("new").replace(path)


@given(st.binary(max_size=5000), st.binary(min_size=1, max_size=50))
def test_what_is_packed_is_unpacked_by_its_size_alone(code: bytes, more: bytes) -> None:
    content = packed(code)
    assert unpacked(content, len(code)) == code == gzip.decompress(content)
    assert content == packed(code)
    for size in (len(code) - 1, len(code) + 1):
        if size > 0:
            with pytest.raises(Mismatch, match="does not hold"):
                unpacked(content, size)
    for wrong in (content + more, content[: -len(more)], content + content):
        with pytest.raises(Mismatch):
            unpacked(wrong, len(code))


def test_the_file_holds_all_cubins_as_gzip_reads_them(folder: Path) -> None:
    content = (folder / "cubins.gz").read_bytes()
    assert gzip.decompress(content) == b"".join(map(code_of, TABLE.kernels))
    for kernel, at in zip(TABLE.kernels, slices(folder).values(), strict=True):
        assert gzip.decompress(content[at]) == code_of(kernel)
        assert kernel.code_bytes == len(code_of(kernel))
    assert not (folder / "cubins").exists()


def test_kernels_that_share_a_cubin_share_its_place(tmp_path: Path) -> None:
    sibling_studies = (FAST, *(replace(FAST, id=name) for name in ("twin", "triplet")))
    table = replace(TABLE, kernels=(sibling_studies[0], *TABLE.kernels[1:], *sibling_studies[1:]))
    code = {kernel.sha256: code_of(kernel) for kernel in TABLE.kernels}
    folder = write_table(TABLE, tmp_path / "t")
    size = (folder / "cubins.gz").stat().st_size
    (folder / "table.json").write_text(render(table), encoding="utf-8")
    assert load_cubins(folder, load(folder)) == code
    assert size == sum(len(packed(one)) for one in code.values())


def _flipped(content: bytes) -> bytes:
    return content[:40] + bytes([content[40] ^ 1]) + content[41:]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[:-1],
    "flipped": _flipped,
    "swapped": lambda content: packed(code_of(OTHER)),
    "grown": lambda content: content + b"\0",
    "twice": lambda content: content * 2,
    "not packed": gzip.decompress,
    "packed otherwise": lambda content: zlib.compress(gzip.decompress(content)),
    "other bytes, of the size": lambda content: packed(gzip.decompress(content)[::-1]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cubin_is_refused_when_it_is_needed_and_others_serve(folder: Path, damage: str) -> None:
    put_packed(folder, FAST.sha256, DAMAGES[damage](packed(code_of(FAST))))
    files = CubinFiles(folder, load(folder))
    Dispatcher(folder).pick(512, 512, 512)
    with pytest.raises(DispatchError, match=r"kernel 'fast' in .*cubins.gz is damaged: its? .*; export"):
        files[FAST.sha256]
    assert files[OTHER.sha256] == code_of(OTHER)
    with pytest.raises(DispatchError, match="is damaged"):
        load_cubins(folder, load(folder))


def test_sizes_that_are_shifted_are_refused(folder: Path) -> None:
    """Their sum fits the file; each kernel would get a part of another's cubin."""
    shifted = [replace(one, packed_bytes=one.packed_bytes + by) for one, by in ((FAST, 1), (OTHER, -1))]
    files = CubinFiles(folder, replace(TABLE, kernels=(*shifted, *TABLE.kernels[2:])))
    for kernel in (FAST, OTHER):
        with pytest.raises(DispatchError, match=f"the cubin of kernel {kernel.id!r} in .* is damaged"):
            files[kernel.sha256]
    assert files[TABLE.kernels[2].sha256] == code_of(TABLE.kernels[2])


@pytest.mark.parametrize("content", [lambda c: c[:-1], lambda c: b"", lambda c: c + b"\0"])
def test_a_file_of_another_size_is_told_at_once(folder: Path, content: Callable[[bytes], bytes]) -> None:
    path = folder / "cubins.gz"
    whole = path.read_bytes()
    path.write_bytes(content(whole))
    message = (
        f"it holds {len(content(whole)):,} bytes, and its table tells of {len(whole):,}; export the table"
    )
    with pytest.raises(DispatchError, match=f"cubins.gz is damaged: {message} again"):
        Dispatcher(folder)


@pytest.mark.parametrize("stated", [FAST.code_bytes, BOMB_BYTES // 4])
def test_no_more_is_unpacked_than_is_stated(folder: Path, stated: int) -> None:
    """A thousand times what its file takes would come of it."""
    put_packed(folder, FAST.sha256, packed(bytes(BOMB_BYTES)))
    table = load(folder)
    kernels = (replace(table.kernels[0], code_bytes=stated), *table.kernels[1:])
    files = CubinFiles(folder, replace(table, kernels=kernels))
    tracemalloc.start()
    try:
        with pytest.raises(DispatchError, match=f"does not hold {stated} bytes"):
            files[FAST.sha256]
        assert tracemalloc.get_traced_memory()[1] < 3 * stated + (1 << 20)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["code_bytes", "packed_bytes"])
@pytest.mark.parametrize("size", [0, -1, (16 << 20) + 1])
def test_a_size_that_no_cubin_has_is_refused(name: str, size: int) -> None:
    with pytest.raises(DispatchError, match=rf"kernels\[0\].{name} is"):
        parse(render(replace(TABLE, kernels=(replace(FAST, **{name: size}), *TABLE.kernels[1:]))))


@pytest.mark.parametrize("name", ["code_bytes", "packed_bytes"])
def test_a_cubin_without_its_sizes_is_refused(name: str) -> None:
    with pytest.raises(
        DispatchError, match=r"kernels\[0\].code_bytes|'fast' does not say how many bytes its cubin takes"
    ):
        parse(render(replace(TABLE, kernels=(replace(FAST, **{name: None}), *TABLE.kernels[1:]))))


def test_kernels_that_share_a_cubin_agree_on_its_sizes() -> None:
    twin = replace(FAST, id="twin")
    assert parse(render(replace(TABLE, kernels=(*TABLE.kernels, twin)))).kernels[-1] == twin
    for name in ("code_bytes", "packed_bytes"):
        kernels = (*TABLE.kernels, replace(twin, **{name: 7}))
        with pytest.raises(DispatchError, match="share a cubin and say that it has other sizes"):
            parse(render(replace(TABLE, kernels=kernels)))


def test_a_missing_file_is_told_at_once(folder: Path) -> None:
    (folder / "cubins.gz").unlink()
    with pytest.raises(DispatchError, match=r"cubins\.gz is not there; export the table again"):
        Dispatcher(folder)


# ------------------------------------------------------------------------------ as long as a program runs


def test_a_program_keeps_its_kernels_when_the_table_is_exported_anew(folder: Path) -> None:
    files = CubinFiles(folder, load(folder))
    write_table(make_table(created_at="later"), folder)
    assert FAST.sha256 not in slices(folder)
    assert files[FAST.sha256] == code_of(FAST)


def test_a_program_keeps_its_kernels_when_the_file_is_replaced_or_goes(folder: Path) -> None:
    files = CubinFiles(folder, load(folder))
    replaced(folder / "cubins.gz", b"other")
    assert files[FAST.sha256] == code_of(FAST)
    (folder / "cubins.gz").unlink()
    assert files[OTHER.sha256] == code_of(OTHER)


@pytest.mark.parametrize("content", [b"", b"other" * 1000])
def test_a_file_that_is_changed_in_its_place_is_refused(folder: Path, content: bytes) -> None:
    """As `cp` does it; nothing is loaded of what came to be there."""
    files = CubinFiles(folder, load(folder))
    (folder / "cubins.gz").write_bytes(content)
    with pytest.raises(DispatchError, match=r"kernel 'fast' in .*cubins.gz is damaged"):
        files[FAST.sha256]


def test_a_link_to_the_file_is_followed(folder: Path, tmp_path: Path) -> None:
    (folder / "cubins.gz").rename(tmp_path / "elsewhere")
    (folder / "cubins.gz").symlink_to(tmp_path / "elsewhere")
    files = CubinFiles(folder, load(folder))
    (folder / "cubins.gz").unlink()
    assert dict(files) == {kernel.sha256: code_of(kernel) for kernel in TABLE.kernels}


def open_files(folder: Path) -> int:
    """Descriptors of this process that are of a folder's cubins."""
    links = Path("/proc/self/fd")
    return sum(os.path.realpath(one).startswith(str(folder / "cubins")) for one in links.iterdir())


def test_a_table_that_is_dropped_closes_its_file(folder: Path) -> None:
    runtime = Dispatcher(folder)
    assert open_files(folder) == 1
    runtime.pick(512, 512, 512)
    del runtime
    gc.collect()
    assert open_files(folder) == 0
    for _ in range(3):
        (folder / "cubins.gz").write_bytes(b"cut")
        with pytest.raises(DispatchError):
            Dispatcher(folder)
    gc.collect()
    assert open_files(folder) == 0


def test_threads_read_at_once(folder: Path) -> None:
    files = CubinFiles(folder, load(folder))
    requested = [kernel.sha256 for kernel in TABLE.kernels] * 200
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(files.__getitem__, requested))
    assert found == [code_of(kernel) for kernel in TABLE.kernels] * 200


AS_A_DAEMON = """
import os, sys
from pathlib import Path
from autotune.files.errors import DispatchError
from autotune.runtime.table.gpu_models import CubinFiles
from autotune.runtime.table.table import load
folder, act = Path(sys.argv[1]), sys.argv[2]
files = CubinFiles(folder, load(folder))
wanted = next(iter(files))
if act in ("forked", "closed", "closed and taken", "closed and replaced"):
    if os.fork():
        status = os.waitstatus_to_exitcode(os.wait()[1])
        assert len(files[wanted]) > 9
        sys.exit(status)
if act.startswith("closed"):
    os.closerange(3, 1000)
if act == "closed and taken":
    taken = [os.open("/dev/zero", os.O_RDONLY) for _ in range(20)]
if act == "closed and replaced":
    path = folder / "cubins.gz"
    (folder / "new").write_bytes(path.read_bytes())
    (folder / "new").replace(path)
if act == "at the exit":
    import atexit
    atexit.register(lambda: print(len(files[wanted])))
    sys.exit()
try:
    print(len(files[wanted]))
except DispatchError as error:
    print("refused:", error)
del files
if act == "closed and taken":
    assert all(os.read(one, 1) for one in taken)
"""


ACTS = ("forked", "closed", "closed and taken", "closed and replaced", "at the exit")


@pytest.mark.parametrize("act", ACTS)
def test_descriptors_that_others_close_or_share(folder: Path, act: str) -> None:
    """A daemon closes all of them after the import. What took the number of ours meanwhile stays open."""
    done = subprocess.run(
        [sys.executable, "-c", AS_A_DAEMON, str(folder), act],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr
    if act == "closed and replaced":
        assert "cubins.gz cannot be read (it was replaced after this program had closed it); " in done.stdout
    else:
        assert int(done.stdout) in {len(code_of(kernel)) for kernel in TABLE.kernels}


def test_a_process_that_has_no_descriptor_left_is_told(folder: Path) -> None:
    table = load(folder)
    code = (
        "import resource, sys; from pathlib import Path;"
        "from autotune.runtime.table.gpu_models import CubinFiles;"
        "from autotune.runtime.table.table import load; folder = Path(sys.argv[1]); table = load(folder);"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)); CubinFiles(folder, table)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "cubins.gz cannot be read ([Errno 24] Too many open files" in done.stderr and table


# ------------------------------------------------------------------------------ earlier schemas
