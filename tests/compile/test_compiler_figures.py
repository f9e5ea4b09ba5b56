"""benchmarks/compiler_figures.py: machine code is read right, bounds are what can be worked out by hand."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.facts.device import KNOWN, DeviceLimits
from autotune.facts.gemm import Gemm
from autotune.files.errors import UsageError
from autotune.kernel import template
from autotune.kernel.compiler import Compiler, Cubin
from autotune.kernel.config import PACKED_ORDERS, Config
from autotune.kernel.launch import Variant
from autotune.kernel.resources import chunk_m, chunk_n, threads
from autotune.kernel.rules import broken_rules
from autotune.search_policy import SearchPolicy

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import compiler_figures
import sass
import time_bounds

DEVICES = {limits.arch: limits for limits in KNOWN.values()}
# Three FFMA in a loop of their own; five, one of them after the loop, in a loop around them; seven before.
LOOPS = """
#define FMA(x, y) asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(x) : "f"(y))
extern "C" __global__ void sgemm(float* data, int n) {
    float x = data[threadIdx.x], y = data[threadIdx.x + 32];
    FMA(x, y); FMA(x, y); FMA(x, y); FMA(x, y); FMA(x, y); FMA(x, y); FMA(x, y);
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
        if (WRAPPED) FMA(y, x);
#pragma unroll 1
        for (int j = 0; j < i; ++j) { FMA(x, y); FMA(x, y); FMA(x, y); }
        if (WRAPPED) FMA(y, x);
    }
    data[threadIdx.x] = x + y;
}
"""


@pytest.fixture(scope="module", params=DEVICES)
def compiler(request, tmp_path_factory):
    made = Compiler(request.param, cache_dir=tmp_path_factory.mktemp("cache"), num_threads=1)
    yield made
    made.close()


def code_of(compiler: Compiler, wrapped: int) -> sass.Code:
    cubin = compiler.compile_source(LOOPS, {"WRAPPED": wrapped})
    return sass.Code(cubin.code, template.ENTRY, compiler.arch)


# ------------------------------------------------------------------------------ machine code


@pytest.mark.every(7)
def test_a_loop_is_found_and_what_is_in_it(compiler):
    code = code_of(compiler, wrapped=0)
    inner = code.main_loop()
    assert code.count(inner).kinds["ffma"] == 3
    assert code.count().kinds["ffma"] == 10
    assert code.count().kinds["global_loads"] == 2
    assert code.around(inner).encloses(inner)


@pytest.mark.every(3)
def test_the_loop_with_most_is_the_outer_where_that_has_some_of_its_own(compiler):
    code = code_of(compiler, wrapped=1)
    assert code.count(code.main_loop()).kinds["ffma"] == 5
    with pytest.raises(UsageError, match="no loop encloses"):
        code.around(code.main_loop())


REGISTERS = {"copy_a": "register", "copy_b": "register", "stages": 2, "bursts": 1}
BUILDS = {
    "through registers": REGISTERS,
    "unrolled in part": REGISTERS | {"bk": 32, "unroll_k": 8},
    "two fragments": REGISTERS | {"frag_buffers": 2, "bk": 8, "unroll_k": 8},
    "slices": REGISTERS | {"slice_k": 2, "bk": 16, "unroll_k": 8},
    "asynchronous": {"stages": 3, "bursts": 1},
    "bursts": {"stages": 4, "bursts": 4, "frag_buffers": 2},
}
SPARE = 8  # instructions by which the compiler's work on equal loops differs
DUMMY_LOADS = 3  # that ptxas puts before a burst of cp.async (decision 0014)


# Each build in either layout on every third architecture
MAIN_LOOPS = [
    (arch, layout, name)
    for i, arch in enumerate(DEVICES)
    for j, layout in enumerate(("NN", "TT"))
    for k, name in enumerate(BUILDS)
    if (i + j + k) % 3 == 0
]


@pytest.mark.every(5)
@pytest.mark.parametrize(("compiler", "layout", "name"), MAIN_LOOPS, indirect=["compiler"])
def test_the_main_loop_is_what_the_template_writes(compiler, layout, name):
    """Per tile of k: a thread's FFMA, its reads of fragments and its share of the copies; one barrier."""
    limits, gemm = DEVICES[compiler.arch], Gemm.parse(f"1024:{layout}")
    vecs = {"vec_a": 1, "vec_b": 4} if layout == "NN" else {"vec_a": 4, "vec_b": 1}
    c = Config.from_dict({"bm": 64, "bn": 64, "wm": 32, "wn": 32, "tm": 8, "tn": 4, "min_blocks": 1,
                          "edges": "exact", **vecs, **BUILDS[name]})  # fmt: skip
    broken = broken_rules(c, limits, gemm)
    if broken:
        assert [rule.id for rule in broken] == ["async-device"]
        return
    found = time_bounds.figures(c, gemm, limits, compiler.compile(c, Variant(gemm.trans_a, gemm.trans_b)))
    tile, steps = found.tile.kinds, c.bk // c.slice_k
    assert found.spill_bytes == 0
    assert found.runs == steps // c.unroll_k
    assert tile["ffma"] == c.tm * c.tn * steps
    assert tile["barriers"] == 1
    copies = c.bk * (c.bm // c.vec_a + c.bn // c.vec_b) // found.threads
    loads = steps * (c.tm // chunk_m(c) + c.tn // chunk_n(c))
    if c.copy_a == "register":
        # both sides of the branch in the run that fetches count in every run
        assert (tile["async_copies"], tile["global_loads"]) == (0, copies * found.runs)
        assert tile["shared_loads"] == loads
        assert tile["shared_stores"] == c.bk * (c.bm + c.bn) // found.threads - 3 * (
            c.bk * 64 // 4 // found.threads
        )
    else:
        assert (tile["async_copies"], tile["global_loads"]) == (copies, 0)
        assert loads <= tile["shared_loads"] <= loads + DUMMY_LOADS * c.bursts
        assert tile["shared_stores"] == 0


@pytest.mark.every(5)
@pytest.mark.parametrize(("tm", "tn"), [(8, 4), (4, 1)])
@pytest.mark.parametrize("order", PACKED_ORDERS)
def test_packed_fmas_are_two_in_an_instruction(compiler, order, tm, tn):
    """Neither an FFMA nor a move for operands that both FMAs share is left in the main loop."""
    limits, gemm = DEVICES[compiler.arch], Gemm.parse("1024:NN")
    c = Config.from_dict({"bm": 64, "bn": 64, "wm": 8 * tm, "wn": 4 * tn, "tm": tm, "tn": tn, "min_blocks": 1,
                          "order": order, "vec_c": 1, "stages": 3, "bursts": 1})  # fmt: skip
    if not limits.has_packed_fma:
        assert "packed-device" in [rule.id for rule in broken_rules(c, limits, gemm)]
        return
    cubin = compiler.compile(c, Variant())
    code = sass.Code(cubin.code, template.ENTRY, compiler.arch)
    counts = code.count(code.main_loop())
    assert (counts.kinds["ffma2"], counts.kinds["ffma"]) == (tm * tn * c.bk // 2, 0)
    one_by_one = compiler.compile(replace(c, order="row_snake"), Variant())
    code = sass.Code(one_by_one.code, template.ENTRY, compiler.arch)
    scalar = code.count(code.main_loop())
    assert counts.instructions <= scalar.instructions - tm * tn * c.bk // 2 + SPARE
    assert cubin.spill_bytes == 0
    with pytest.raises(UsageError, match="packed FMAs"):
        time_bounds.figures(c, gemm, limits, cubin)


# word, architecture, bytes: as nvdisasm shows them
@pytest.mark.parametrize(
    ("word", "arch", "distance"),
    [
        (0x0000007000008947, 75, 112), (0xFFFFB66000000947, 75, -18848), (0x0000558000008947, 75, 21888),
        (0xFFFFFFF000007947, 86, -16), (0xFFFFB6A000007947, 89, -18784), (0x00000000001C8947, 90, 112),
        (0x00000058000C8947, 90, 22576), (0xFFFFFFB400C02947, 90, -18688), (0xFFFFFFFC00FC7947, 90, -16),
    ],
)  # fmt: skip
def test_branches_lead_where_the_disassembler_says(word, arch, distance):
    assert sass._distance(word, arch) == distance


def test_what_is_no_cubin_is_refused(compiler):
    cubin = compiler.compile_source(LOOPS, {"WRAPPED": 0}).code
    for corrupted in (
        b"",
        b"no ELF file",
        cubin[:40],
        cubin[: len(cubin) // 2],
        cubin[:4] + b"\1" + cubin[5:],
    ):
        with pytest.raises(UsageError, match="cubin"):
            sass.Code(corrupted, template.ENTRY, compiler.arch)
    with pytest.raises(UsageError, match=r"no section \.text\.other"):
        sass.Code(cubin, "other", compiler.arch)


def test_a_kernel_without_a_loop_of_products_is_refused(compiler):
    text = 'extern "C" __global__ void sgemm(float* x) { x[threadIdx.x] *= 2; }'
    cubin = compiler.compile_source(text)
    with pytest.raises(UsageError, match="no loop"):
        sass.Code(cubin.code, template.ENTRY, compiler.arch).main_loop()
    fake = SimpleNamespace(code=compiler.compile_source(LOOPS, {"WRAPPED": 0}).code)
    with pytest.raises(UsageError, match="3 FFMA in the main loop for"):
        time_bounds.figures(Config(), Gemm(64, 64, 64), DEVICES[compiler.arch], fake)


# ------------------------------------------------------------------------------------- bounds

# Two SMs at 1 GHz of 128 lanes: 512 FLOP per ns. 100 GB/s: 100 bytes per ns.
TWO_SMS = replace(KNOWN["rtx-3090"], num_sms=2, fma_tflops=0.512, bandwidth_gbs=100.0, l2_bytes=1 << 20)
TILE = Config(
    bm=64, bn=64, bk=16, wm=32, wn=32, tm=8, tn=4, unroll_k=16, stages=2, bursts=1, min_blocks=1,
    edges="exact", copy_a="register", copy_b="register", vec_a=4,
)  # fmt: skip


def made(config: Config, **kinds: int) -> time_bounds.Figures:
    """A kernel whose loop issues 600 instructions per tile of k."""
    counts = sass.Counts(600, dict.fromkeys(sass.KINDS, 0) | {"ffma": 512, "fma_pipe": 520} | kinds)
    return time_bounds.Figures(config, 100, 0, 16384, int(threads(config)), 3, counts, 1, counts)


@pytest.mark.parametrize(
    ("n", "busiest", "loss"), [(128, 1, 0.0), (192, 2, 0.25), (256, 2, 0.0), (64, 1, 0.5)]
)
def test_the_sm_with_most_tiles_decides(n, busiest, loss):
    low = time_bounds.bound(made(TILE), Gemm(64, n, 160), TWO_SMS)
    # 4 warps, one per scheduler; ten tiles of k
    assert low.compute_us == pytest.approx(busiest * 10 * 600 / 1e3)
    assert low.wave_loss == pytest.approx(loss)
    assert low.waves == pytest.approx(n / 64 / 6)


def test_splits_share_out_k():
    split = replace(TILE, reduction="last_block", split_k=2)
    low = time_bounds.bound(made(split), Gemm(64, 64, 160), TWO_SMS)
    assert low.compute_us == pytest.approx(5 * 600 / 1e3)
    last = replace(TILE, reduction="last_wave", split_k=2)  # two tiles are a wave; the third is split
    assert time_bounds.bound(made(last), Gemm(64, 192, 160), TWO_SMS).compute_us == pytest.approx(15 * 0.6)


def test_half_the_lanes_make_other_instructions_free():
    turing = replace(TWO_SMS, compute_capability=(7, 5), fma_tflops=0.256)
    found = made(TILE)
    assert time_bounds.clock_ghz(turing) == time_bounds.clock_ghz(TWO_SMS) == 1.0
    assert found.tile_cycles(turing) == 1040  # two cycles for each of 520
    assert found.tile_cycles(TWO_SMS) == 600
    assert found.pipe_share(turing) == pytest.approx(512 / 520)
    assert found.pipe_share(TWO_SMS) == found.ffma_share == pytest.approx(512 / 600)


def test_memory_and_shared_memory_bind_where_they_are_slower():
    thin = Gemm(64, 6400, 16)
    low = time_bounds.bound(made(TILE), thin, replace(TWO_SMS, bandwidth_gbs=10.0))
    assert (low.binds, low.time_us) == ("memory", pytest.approx(thin.num_bytes / 1e4))
    assert low.dram_bytes_per_fma == pytest.approx(thin.num_bytes / (64 * 6400 * 16))
    # per step: rows in 2 reads of 16 bytes, columns in 1, two cycles each; 4 warps, 16 steps; 64 lines in
    assert made(TILE).shared_cycles == 64 + 4 * 16 * 6
    found = made(TILE)
    busy = replace(found, config=replace(TILE, tm=1, tn=1))
    assert time_bounds.bound(busy, Gemm(64, 64, 160), TWO_SMS).shared_us == pytest.approx(
        10 * (64 + 128) / 1e3
    )


def test_packing_is_paid_before():
    gemm = Gemm(64, 64, 160)
    packed = time_bounds.bound(made(replace(TILE, pack_a=1)), gemm, TWO_SMS)
    assert packed.packing_us == pytest.approx(4 * 64 * 160 / 1e5)
    assert packed.memory_us == pytest.approx((gemm.num_bytes - 4 * 64 * 160) / 1e5)  # A waits in L2
    no_l2 = time_bounds.bound(made(replace(TILE, pack_a=1)), gemm, replace(TWO_SMS, l2_bytes=0))
    assert no_l2.packing_us == pytest.approx(2 * packed.packing_us)
    assert no_l2.memory_us == pytest.approx(gemm.num_bytes / 1e5)
    assert packed.time_us == packed.packing_us + packed.compute_us


def test_what_was_put_in_is_learnt():
    low = [1.0, 3.0, 10.0, 50.0, 400.0, 9000.0]
    trust = time_bounds.learn(low, [2.5 + x / 0.8 for x in low])
    assert (trust.fixed_us, trust.reached) == (pytest.approx(2.5), pytest.approx(0.8))
    assert trust.spread == pytest.approx(1.0) and trust.most == pytest.approx(1.0)
    assert trust.worst == pytest.approx(3.75)
    assert trust.expect_us(8.0) == pytest.approx(12.5)
    noisy = time_bounds.learn(low, [1.1 * low[0], 2 * low[1], *low[2:]])
    assert 1 < noisy.spread < noisy.most


def test_an_sm_of_unknown_cores_is_not_guessed():
    with pytest.raises(UsageError, match="cores"):
        time_bounds.fp32_cores(replace(TWO_SMS, compute_capability=(9, 9)))


# ------------------------------------------------------------------------------------- script


def measured_file(path: Path, limits: DeviceLimits) -> Path:
    shapes = [{"shape": "64x128x64:NN", "contestants": {"ours": {"detail": TILE.key, "time_us": 4.0}}}]
    path.write_text(json.dumps({"limits": limits.to_dict(), "shapes": shapes}), encoding="utf-8")
    return path


NUM_COMPILED = 4  # for each shape of a GPU
all_starts = compiler_figures.all_starts


def _first_starts(*requested: object) -> dict[str, list[compiler_figures.StartingConfigs]]:
    found = all_starts(*requested)
    for one in (one for of_gpu in found.values() for one in of_gpu):
        assert NUM_COMPILED < len(one.configs) <= SearchPolicy.num_seeds
    return {
        name: [replace(one, configs=one.configs[:NUM_COMPILED]) for one in of_gpu]
        for name, of_gpu in found.items()
    }


@pytest.mark.stress
def test_the_script_reports_each_shape_of_each_gpu(tmp_path, monkeypatch, capsys):
    suite = tmp_path / "suite.toml"
    suite.write_text("[[shape]]\nm = 64\nn = 64\nk = 256\n", encoding="utf-8")
    measured, out = measured_file(tmp_path / "measured.json", KNOWN["h200"]), tmp_path / "out.json"
    gpus = ("--gpu", "quadro-rtx-5000", "--gpu", "rtx-4090")
    page = tmp_path / "page.md"
    page.write_text(f"Words.\n\n{compiler_figures.MARK}\n\nold tables\n", encoding="utf-8")
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler_figures, "all_starts", _first_starts)
    written = ("--out", str(out), "--page", str(page))
    monkeypatch.setattr(sys, "argv", ["compiler_figures.py", *gpus, "--suite", str(suite), "--measured",
                                      str(measured), "--jobs", "1", *written])  # fmt: skip
    compiler_figures.main()
    report = json.loads(out.read_text())
    assert [g["gpu"] for g in report["gpus"]] == ["quadro-rtx-5000", "rtx-4090"]
    for gpu in report["gpus"]:
        (facts,) = gpu["shapes"]
        assert facts["num_legal"] == NUM_COMPILED
        assert 0 < facts["expected_share"] < facts["bound_share"] <= 1
        assert 0.2 < facts["ffma_share"] <= facts["pipe_share"] <= 1
        config, gemm = Config.parse(facts["config"]), Gemm.parse(facts["shape"])
        assert broken_rules(config, DeviceLimits.from_dict(gpu["limits"]), gemm) == ()
    assert report["trust"]["shapes"][0]["time_us"] == 4.0
    shown = capsys.readouterr().out
    assert "Quadro RTX 5000 (sm_75" in shown and "64x64x256:NN" in shown
    head, tables = page.read_text().split(compiler_figures.MARK)
    assert head == "Words.\n\n" and tables.strip() == shown.strip()


def test_a_page_without_a_mark_is_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Words.\n", encoding="utf-8")
    with pytest.raises(UsageError, match="has no line"):
        compiler_figures.write_page(page, "tables")
    assert page.read_text() == "Words.\n"


def test_what_would_be_refused_is_not_chosen(monkeypatch):
    """The kernel with the least bound spills: a search would not time it."""
    good, bad = made(TILE), replace(made(TILE), spill_bytes=4096, config=replace(TILE, order="col_snake"))
    low = time_bounds.bound(good, Gemm(64, 128, 160), TWO_SMS)
    cheap = replace(low, compute_us=0.0)
    simulated = [compiler_figures.CompiledConfig(bad, cheap), compiler_figures.CompiledConfig(good, low)]
    monkeypatch.setattr(compiler_figures, "candidates", lambda *_: simulated)
    start = compiler_figures.StartingConfigs(Gemm(64, 128, 160), (bad.config, good.config))
    trust = time_bounds.learn([1.0], [2.0])
    facts = compiler_figures.gpu_facts("two", TWO_SMS, [start], trust, 1)
    assert facts["shapes"][0]["config"] == TILE.key
    assert len(facts["refused"]) == 1


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "other.json"
    path.write_text('{"shapes": []}', encoding="utf-8")
    with pytest.raises(UsageError, match="no result of vs_cublas"):
        compiler_figures.calibrate(path, 1)


def test_cubins_are_those_of_the_product(compiler):
    """What is read is what would be launched: the same bytes, with what ptxas says beside them."""
    config = replace(TILE, vec_a=1)
    cubin: Cubin = compiler.compile(config, Variant())
    found = time_bounds.figures(config, Gemm(512, 512, 512), DEVICES[compiler.arch], cubin)
    assert (found.registers, found.spill_bytes) == (cubin.registers, cubin.spill_bytes)
    assert found.warps_per_sm == found.blocks_per_sm * 4
