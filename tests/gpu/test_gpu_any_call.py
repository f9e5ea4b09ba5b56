"""The drawn calls of tests/unit/test_any_call.py in C on a real GPU, some of them captured into graphs: what
is launched is that product, nothing beside C is written, and what may not be read is not."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from c_front import Handle
from made_table import each_kind_of_launch, export_winners, plain_config
from test_any_call import FAULTS, Drawn, InC, Laid, drawn_gemm

from autotune.facts.gemm import A_TYPES, LAYOUTS, Gemm
from autotune.gpu.driver import device_limits
from autotune.kernel.launch import PLAIN
from autotune.runtime.native.core import loaded
from autotune.runtime.table.gpu_models import CubinFiles
from autotune.runtime.table.table import Table, load

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
KINDS = {"fp32": np.float32, "bf16": np.uint16, "fp16": np.float16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plain = plain_config(device_limits(0), vec_b=4)
    winners = each_kind_of_launch(
        plain, [Gemm(64, 64, 64)], [Gemm(65, 36, 64)], [Gemm(33, 64, 512), Gemm(8, 128, 1024)]
    )
    for layout in LAYOUTS:
        turned = Gemm.of_layout(layout, 64, 33, 128, 1, False, False)
        loose = replace(plain, vec_b=1, vec_c=1)
        winners[turned] = replace(loose, pack_a=1, pack_b=1, vec_a=4, vec_b=4)
        winners[replace(turned, batch=5)] = loose
        winners[replace(turned, m=128, k=1100, batch=3)] = replace(loose, reduction="two_pass", split_k=5)
    made = tmp_path_factory.mktemp("any_call") / "any_call_table"
    return export_winners(winners, made, epilogues=["bias", "relu", "bias-gelu"])


class OnGpu:
    """The memory of an array of a call, with the same alignment."""

    def __init__(self, torch: Any, laid: Laid) -> None:
        self._torch, self._laid = torch, laid
        num_bytes, host = laid.whole.nbytes, laid.whole.ctypes.data
        self._held = torch.empty(num_bytes + 256, dtype=torch.uint8, device="cuda")
        start = (host - self._held.data_ptr()) % 256
        self._memory, self._host = self._held[start : start + num_bytes], host

    def at(self, address: int) -> int:
        return self._memory.data_ptr() + address - self._host if address > 1 << 16 else address

    def upload(self) -> None:
        self._memory.copy_(self._torch.from_numpy(self._laid.whole.view(np.uint8)))

    def download(self) -> None:
        self._laid.whole.view(np.uint8)[...] = self._memory.cpu().numpy()


class Served:
    """A drawn call with its operands on the GPU."""

    def __init__(self, torch: Any, rng: random.Random, drawn: Drawn) -> None:
        self.drawn, self._rng = drawn, rng
        self.a, self.b, self.c = (OnGpu(torch, one) for one in (drawn.a, drawn.b, drawn.c))
        self.added = None if drawn.added is None else OnGpu(torch, drawn.added)

    def arguments(self, fault: str) -> tuple[str, list[Any], bool]:
        """The function, what it takes behind the stream, and whether it refuses that."""
        called = InC.of(self._rng, self.drawn)
        assert called is not None
        for name in "abc":
            side = getattr(called, name)
            side[0] = getattr(self, name).at(side[0])
        if self.added is not None:
            called.bias = self.added.at(called.bias)
        is_spoilt = bool(fault) and called.spoil(self._rng, fault)
        return *called.arguments(self._rng), is_spoilt

    def fill(self, scales: tuple[float, float] | None = None) -> None:
        self.drawn.fill(self._rng, scales)
        for one in filter(None, (self.a, self.b, self.c, self.added)):
            one.upload()

    def check(self, *, is_served: bool) -> None:
        for one in (self.a, self.b, self.c):
            one.download()
        slack = 4.0 if self.drawn.activation else 1.0  # of the GPU's erf
        self.drawn.check(is_served=is_served, slack=slack)


def drawn_call(torch: Any, rng: random.Random, table: Table) -> Served:
    gemm = drawn_gemm(rng, [entry.gemm for entry in table.entries])
    if rng.random() < 0.25:
        gemm = replace(gemm, a_type=rng.choice(A_TYPES[1:]))
    epilogue, found = rng.choice((PLAIN, PLAIN, *table.epilogues)), None
    while found is None or InC.of(rng, found) is None:
        found = Drawn(rng, gemm, epilogue, is_odd=rng.random() < 0.6, kind=KINDS[gemm.a_type])
    return Served(torch, rng, found)


@pytest.mark.parametrize("seed", range(3))
def test_a_call_in_c_is_its_product(torch: Any, folder: Path, seed: int) -> None:
    rng, table = random.Random(seed), load(folder)
    code = CubinFiles(folder, table)
    torch.zeros(1, device="cuda")
    handle, graphs = Handle(loaded(), [table], lambda kernel: code[kernel.sha256]), list[Any]()
    of, streams = handle.numbers, [torch.cuda.Stream() for _ in range(2)]
    for _ in range(150):
        served, stream = drawn_call(torch, rng, table), rng.choice(streams)
        served.fill()
        name, arguments, is_spoilt = served.arguments(rng.choice(FAULTS) if rng.random() < 0.1 else "")
        torch.cuda.synchronize()
        if rng.random() < 0.25 and not is_spoilt:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                status = handle.call(name, stream.cuda_stream, *arguments)
            assert status == of.OK, (name, arguments)
            graphs.append((graph, served, (served.drawn.alpha, served.drawn.beta)))
        else:
            status = handle.call(name, stream.cuda_stream, *arguments)
            torch.cuda.synchronize()
            assert status == (of.BAD_CALL if is_spoilt else of.OK), (name, arguments, status)
            served.check(is_served=not is_spoilt)
        for graph, other, scales in rng.sample(graphs, min(len(graphs), 2)):
            other.fill(scales)
            graph.replay()
            torch.cuda.synchronize()
            other.check(is_served=True)
    del graphs
    torch.cuda.synchronize()
    handle.close()
