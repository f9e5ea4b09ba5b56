"""A folder of several kinds on a real GPU, cuBLAS where no table is for it, and the quick check."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_table import export_winners, plain_config

from autotune.export.check import error_ratio, verify_table
from autotune.export.package import write_folder
from autotune.facts.gemm import Gemm
from autotune.files.errors import DispatchError, DispatchWarning
from autotune.gpu.driver import device_limits
from autotune.runtime.choose import blas_provider
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.table.gpu_models import load_cubins
from autotune.runtime.table.table import Table, load

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

TUNED = Gemm(1024, 1024, 1024)
OTHER = "NVIDIA Another GPU"


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For the GPU that is here."""
    config = plain_config(device_limits(0), vec_b=4)
    return export_winners({TUNED: config}, tmp_path_factory.mktemp("kinds") / "single")


def write(table: Table, single: Path, folder: Path, *, adds: bool = False) -> Path:
    return write_folder(table, load_cubins(single, load(single)), folder, adds=adds)


def of_another_gpu(table: Table) -> Table:
    return replace(table, environment=replace(table.environment, gpu_name=OTHER))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / "cache"))
    for name in ("AUTOTUNE_SETTLE", "AUTOTUNE_CHOICES", "AUTOTUNE_CUBLAS", "AUTOTUNE_FALLBACK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def both(single: Path) -> Path:
    """The other GPU's table first."""
    table = load(single)
    folder = write(of_another_gpu(table), single, single.with_name("both_kinds"))
    return write(table, single, folder, adds=True)


@pytest.fixture
def stranger(single: Path, tmp_path: Path) -> Path:
    return write(of_another_gpu(load(single)), single, tmp_path / "of_another_gpu")


def check(runtime: Dispatcher, torch: Any, gemm: Gemm, alpha: float = 1.0, beta: float = 0.0) -> None:
    rng = np.random.default_rng(gemm.m)
    shapes = ((gemm.m, gemm.k), (gemm.k, gemm.n), (gemm.m, gemm.n))
    a, b, c = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    out = torch.tensor(c if beta else np.full_like(c, np.nan), device="cuda")
    on_gpu = [torch.tensor(x, device="cuda") for x in (a, b)]
    runtime.sgemm(*on_gpu, out, alpha=alpha, beta=beta)
    found = out.cpu().numpy()
    if gemm.k and alpha:
        assert error_ratio(gemm, (a, b, c), found, (alpha, beta), rng) <= 1
    else:
        np.testing.assert_allclose(found, beta * c if beta else 0 * c, rtol=1e-6)


def test_the_table_for_this_gpu_serves(both: Path, torch: Any) -> None:
    runtime = Dispatcher(both, cublas=False)
    assert runtime.table.environment.gpu_name == OTHER
    for gemm in (TUNED, Gemm(129, 65, 257), TUNED):
        check(runtime, torch, gemm, 0.5, -2.0)
    assert runtime.pick(1024, 1024, 1024, device=0).how == "exact"
    (pick,) = runtime.settle([(300, 200, 100)])
    assert pick.how in ("settled", "modelled", "nearest", "default")
    assert all(check.is_ok for check in verify_table(both))


def test_other_gpus_are_refused_or_served_by_cublas(stranger: Path, torch: Any) -> None:
    with pytest.raises(DispatchError, match=f"{OTHER}.*AUTOTUNE_FALLBACK=cublas"):
        check(Dispatcher(stranger), torch, TUNED)
    if blas_provider.find_library() is None:
        pytest.skip("no cuBLAS is found")
    runtime = Dispatcher(stranger, fallback="cublas")
    with pytest.warns(DispatchWarning, match="cuBLAS serves its products") as message:
        for gemm in (TUNED, Gemm(129, 65, 257), Gemm(1, 1, 1), Gemm(33, 17, 0)):
            for alpha, beta in ((1.0, 0.0), (0.5, -2.0), (0.0, 3.0), (0.0, 0.0)):
                check(runtime, torch, gemm, alpha, beta)
    assert len(message) == 1
    x = np.random.default_rng(0).standard_normal((40, 40), dtype=np.float32)
    np.testing.assert_allclose(runtime.sgemm(x, x), x @ x, rtol=1e-4, atol=1e-4)
    y = torch.randn(64, 128, device="cuda")[:, ::2].T  # copied, as elsewhere
    torch.testing.assert_close(runtime.sgemm(y, y), y @ y, rtol=1e-4, atol=1e-4)


def test_cublas_s_products_are_captured(stranger: Path, torch: Any) -> None:
    if blas_provider.find_library() is None:
        pytest.skip("no cuBLAS is found")
    runtime = Dispatcher(stranger, fallback="cublas")
    a, b = (torch.randn(256, 256, device="cuda") for _ in range(2))
    out = torch.zeros(256, 256, device="cuda")
    with pytest.warns(DispatchWarning):
        runtime.sgemm(a, b, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        runtime.sgemm(a, b, out)
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(out, a @ b, rtol=1e-4, atol=1e-4)


def test_routing_leaves_other_gpus_alone(stranger: Path, torch: Any) -> None:
    routing = Dispatcher(stranger, fallback="cublas").torch()
    a = torch.randn(512, 512, device="cuda")
    before = a @ a
    with routing:
        torch.testing.assert_close(a @ a, before, rtol=0, atol=0)
    assert "0 products served, 1 left alone" in routing.report()


@pytest.mark.alone
def test_a_quick_check_sees_the_times_that_it_is_told(single: Path, tmp_path: Path) -> None:
    """Times of the made table are invented: one that was measured here stands in, then one half as long."""
    runtime = Dispatcher(single)
    first = runtime.verify_quick()
    assert first.is_right and 0 < first.error_ratio < 1 and first.kernel_id
    table = load(single)
    verdicts = {}
    for factor in (1.0, 0.5):
        entries = tuple(
            replace(e, ranked=tuple(replace(r, time_us=factor * first.time_us) for r in e.ranked))
            for e in table.entries
        )
        folder = write(replace(table, entries=entries), single, tmp_path / f"half_{factor < 1}")
        found = Dispatcher(folder).verify_quick()
        assert found.is_right and found.ratio is not None
        verdicts[factor] = found.ratio
    assert 0.5 < verdicts[1.0] < 1.5 < verdicts[0.5]


def test_the_command_tells_by_its_status(single: Path, tmp_path: Path) -> None:
    """A recorded time that no GPU reaches: slow, and nothing else."""
    command = [sys.executable, "-m", "autotune", "verify", str(single), "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    facts = json.loads(done.stdout)
    assert facts["is_right"] and done.returncode == (0 if facts["is_as_fast"] else 7), done.stderr
    copy = shutil.copytree(single, tmp_path / "copy")
    path = copy / "cubins.gz"
    path.write_bytes(path.read_bytes()[::-1])
    command[4] = str(copy)
    assert subprocess.run(command, capture_output=True, check=False, timeout=120).returncode == 6
