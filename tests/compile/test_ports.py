"""benchmarks/main_loop.py: operands are read off machine code right, ports are counted as by hand."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.facts.device import KNOWN, Environment
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import Measurement, Outcome
from autotune.files.errors import UsageError
from autotune.kernel import template
from autotune.kernel.compiler import Compiler
from autotune.kernel.config import Config
from autotune.kernel.launch import Variant
from autotune.store import Store

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import main_loop
import ports
import sass
from disassembler import section_of
from sass import RegisterRead

H200, GEMM = KNOWN["h200"], Gemm(1024, 1024, 1024)
SMALL = Config(bm=32, bn=64, bk=8, wm=16, wn=32, tm=4, tn=4, unroll_k=8, stages=2, bursts=1, min_blocks=1)

# Products of registers, of one register twice, with an immediate in each place, with an integer
FORMS = """
extern "C" __global__ void sgemm(float* data, float scale, int stride) {
    float x = data[threadIdx.x], y = data[threadIdx.x + 32], z = data[threadIdx.x * stride + 7];
    x = fmaf(x, y, z); y = fmaf(y, y, x); z = fmaf(z, 1.5f, y); x = fmaf(x, z, 2.5f); y = fmaf(y, scale, x);
    z = fmaf(x, y, scale); x = x * 1.25f + y; y = __fmul_rn(y, x); z = __fadd_rn(z, y);
    x = __fmul_rn(x, scale); y = __fadd_rn(y, 3.5f); z = __fmul_rn(z, 4.5f); x = __fadd_rn(-x, scale);
    data[threadIdx.x * stride * stride + 3] = x + y * z;
}
"""


@pytest.fixture
def compiler(tmp_path) -> Iterator[Compiler]:
    made = Compiler("sm_90", cache_dir=tmp_path, num_threads=1)
    yield made
    made.close()


# ------------------------------------------------------------------------------ operands


# The two halves of an instruction, and what nvdisasm says of it (sm_90)
@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0x0000001F226E7223, 0x000FE20000000002, "FFMA R110, R34, R31, R2"),
        (0x0000001922667223, 0x05CFE20000000049, "FFMA R102, R34.reuse, R25, R73"),
        (0x0000001E200B7223, 0x0C0FE2000000000B, "FFMA R11, R32.reuse, R30.reuse, R11"),
        (0x000000061F1F7C23, 0x004FE20008000020, "FFMA R31, R31, UR6, R32"),
        (0x000000571C577221, 0x004FC60000000000, "FADD R87, R28, R87"),
        (0x00000005691F7C20, 0x004FE20008400000, "FMUL R31, R105, UR5"),
        (0x0000000005047224, 0x000FCA00078E02FF, "IMAD R4, R5, R0, RZ"),
        (0xFFFFFFE018187824, 0x002FE200078E0203, "IMAD R24, R24, -0x20, R3"),
        (0x000000AEAB047225, 0x080FE200078E0014, "IMAD.WIDE.U32 R4, R171, R174.reuse, R20"),
        (0x0000000419107825, 0x042FE400078E0202, "IMAD.WIDE R16, R25.reuse, 0x4, R2"),
    ],
)
def test_registers_are_those_of_the_disassembler(low, high, text):
    assert sass._sources(low & 0x1FF, low, high) == sources_of(text)


def sources_of(text: str) -> tuple[RegisterRead, ...]:
    """Of a line of nvdisasm's: registers behind the destination, predicates left out."""
    operands = [x.strip() for x in text.split(None, 1)[1].split(",")]
    values = [x for x in operands if not re.fullmatch(r"!?U?P[\dT]", x)][1:]
    found = [(slot, re.match(r"[-|~]*R(\d+)", value), ".reuse" in value) for slot, value in enumerate(values)]
    return tuple(RegisterRead(slot, int(match[1]), is_kept) for slot, match, is_kept in found if match)


@pytest.mark.every(3)
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90", "sm_120"])
def test_every_product_is_read_as_the_disassembler_reads_it(arch, tmp_path):
    compiler = Compiler(arch, cache_dir=tmp_path / "cache", num_threads=1)
    try:
        for cubin in (compiler.compile_source(FORMS), compiler.compile(SMALL, Variant())):
            code = sass.Code(cubin.code, template.ENTRY, arch)
            found = code.fma_sources(sass.Loop(0, len(code.operations) - 1))
            expected = disassembled(cubin.code)
            assert len(expected) == code.count().kinds["fma_pipe"] > 10
            assert {at: found[at] for at in expected} == expected
            assert not any(one for at, one in enumerate(found) if at not in expected)
    finally:
        compiler.close()


def disassembled(cubin: bytes) -> dict[int, tuple[RegisterRead, ...]]:
    """Sources of each instruction of the FMA pipe, by its number."""
    pattern = r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?((?:FFMA|FMUL|FADD|IMAD)\b.*?);"
    lines = re.findall(pattern, section_of(cubin))
    return {int(at, 16) // sass.INSTRUCTION_BYTES: sources_of(text) for at, text in lines}


# ------------------------------------------------------------------------------ ports


def ffma(*registers: int, kept: tuple[int, ...] = ()) -> tuple[RegisterRead, ...]:
    return tuple(RegisterRead(slot, register, slot in kept) for slot, register in enumerate(registers))


OTHER: tuple[RegisterRead, ...] = ()  # an instruction that the model gives no reads


@pytest.mark.parametrize(
    ("loop", "stalls", "hits"),
    [
        ([ffma(0, 2, 4)], 2, 0),  # one port for three
        ([ffma(0, 2, 5)], 1, 0),
        ([ffma(0, 2, 4), OTHER, OTHER], 0, 0),  # three cycles for three: the window holds them
        ([ffma(0, 2, 5), ffma(1, 3, 4)], 1, 0),  # three per bank in two instructions
        ([ffma(0, 2, 5), ffma(1, 3, 4), OTHER], 0, 0),
        ([ffma(0, 2, 5, kept=(0,))], 0, 1),  # left to itself by the run before
        ([ffma(0, 2, 5, kept=(0,)), ffma(0, 4, 7)], 1, 1),  # the second keeps it no longer
        ([ffma(0, 2, 5, kept=(0,)), ffma(6, 4, 7)], 2, 0),  # another register of the bank: the entry is lost
        ([ffma(0, 2, 5, kept=(0,)), ffma(7, 4, 9), OTHER], 0, 1),  # of the other bank: it is not
        ([ffma(0, 2, 5, kept=(0,)), ffma(2, 0, 5), OTHER], 1, 0),  # the same register in another place
        ([OTHER], 0, 0),
    ],
)
def test_ports_are_counted_as_by_hand(loop, stalls, hits):
    """`stalls` and `hits` of each of many rounds: what a window holds back is soon used up."""
    num_rounds = 12
    found = ports.run(loop * num_rounds)
    assert found == ports.Ports(stalls * num_rounds, sum(map(len, loop)) * num_rounds, hits * num_rounds)


REGISTERS = st.integers(0, 11)
INSTRUCTIONS = st.lists(
    st.just(OTHER)
    | st.builds(ffma, REGISTERS, REGISTERS, REGISTERS, kept=st.sampled_from([(), (0,), (1, 2)])),
    min_size=1,
    max_size=40,
)


@given(loop=INSTRUCTIONS)
def test_no_bank_gives_more_than_an_operand_per_cycle(loop):
    found = ports.run(loop)
    assert 0 <= found.hits <= found.reads and 0 <= found.stalls <= found.reads - found.hits
    bare = [tuple(RegisterRead(one.slot, one.register, False) for one in sources) for sources in loop]
    uncached = ports.run(bare)
    assert uncached.hits == 0
    banks = Counter(one.register % ports.NUM_BANKS for sources in bare for one in sources)
    cycles = len(loop) + uncached.stalls + ports.WINDOW - 1  # in which this run may read
    assert max(banks.values(), default=0) <= cycles


# ------------------------------------------------------------------------------ script


def test_a_kernel_is_read_as_it_is_compiled(compiler):
    config = SMALL
    found = main_loop.read(config, GEMM, H200, compiler.compile(config, Variant()))
    assert found.ports.reads >= 2 * found.figures.loop.kinds["ffma"]
    assert 0.3 < found.hits_per_ffma < 2  # ptxas keeps about one operand of three
    assert 0 <= found.stalls_per_instruction < 0.5
    assert found.rate == pytest.approx(found.figures.ffma_share / found.slowdown)
    assert found.expected_us >= found.bound.time_us


def test_agreement_is_that_of_ranks_and_factors():
    seen = main_loop.agreement([1.0, 2.0, 4.0], [3.0, 6.0, 12.0])
    assert seen == main_loop.Agreement(*map(pytest.approx, (1.0, 3.0, 1.0)))
    assert main_loop.agreement([1.0, 2.0, 4.0], [8.0, 6.0, 5.0]).rank_correlation == pytest.approx(-1)
    tied = main_loop.agreement([1.0, 1.0, 4.0], [2.0, 4.0, 8.0])
    assert tied.rank_correlation == pytest.approx(0.866, abs=1e-3)
    assert tied.spread > 1
    assert main_loop.agreement([2.0, 2.0], [3.0, 4.0]).rank_correlation == 0


def store_of(path: Path, source_hash: str, times: dict[Config, float]) -> str:
    environment = Environment(H200.name, "GPU-1", (9, 0), "580.1", "13.0", "13.4", "13.1")
    with Store.open(path) as store:
        study = store.study(environment, source_hash, "nvrtc 13.4", GEMM)
        for config, time_us in times.items():
            measured = Measurement(Outcome.OK, time_us=time_us, samples_us=(time_us,))
            store.add_trial(study, config.key, config.to_dict(), measured, "test")
    return str(path)


def test_trials_are_taken_evenly_of_the_near(tmp_path):
    times = {Config(group=group, split_k=split): 100.0 + 4 * at + 2 * (group == 4) for group in (1, 4)
             for at, split in enumerate((1, 2, 3, 4, 6, 8, 12, 16))}  # fmt: skip
    path = store_of(tmp_path / "trials.db", template.source_hash(), times)
    near = main_loop.timed(path, GEMM, H200, within=1.2, most=3)  # of 100, 102, ... 120
    assert list(near.values()) == [100.0, 110.0, 120.0]
    assert all(times[config] == time_us for config, time_us in near.items())
    assert len(main_loop.timed(path, GEMM, H200, within=2.0, most=100)) == 16
    with pytest.raises(UsageError, match="nothing can be compared"):
        main_loop.timed(path, GEMM, H200, within=1.0, most=60)
    for gemm, limits in ((Gemm(1, 2, 3), H200), (GEMM, KNOWN["rtx-3090"])):
        with pytest.raises(UsageError, match="no trials of this kernel"):
            main_loop.timed(path, gemm, limits, within=1.3, most=60)
    other = store_of(tmp_path / "other.db", "0" * 64, times)
    with pytest.raises(UsageError, match="no trials of this kernel"):
        main_loop.timed(other, GEMM, H200, within=1.3, most=60)


def test_the_script_tells_of_configs_and_of_trials(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / "cache"))
    out, configs = tmp_path / "out.json", [SMALL, replace(SMALL, order="col_snake")]
    times = {config: 50.0 + number for number, config in enumerate(configs)}
    path = store_of(tmp_path / "trials.db", template.source_hash(), times)
    for which in ([c.key for c in configs], ["--db", path]):
        arguments = ["--shape", "1024", "--jobs", "1", "--out", str(out), *which]
        monkeypatch.setattr(sys, "argv", ["main_loop.py", *arguments])
        main_loop.main()
        (facts,) = json.loads(out.read_text())["shapes"]
        shown = capsys.readouterr().out
        assert [one["config"] for one in facts["kernels"]] == [c.key for c in configs]
        assert all(0 < one["rate"] <= one["ffma_share"] < 1 for one in facts["kernels"])
        assert f"1. {configs[0].key}" in shown and ("rank correlation" in shown) == ("--db" in which)


def test_what_is_not_modelled_is_refused(monkeypatch, capsys):
    arguments = ["--shape", "1024", "--gpu", "quadro-rtx-5000", Config().key]
    monkeypatch.setattr(sys, "argv", ["main_loop.py", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main_loop.main()
    assert stopped.value.code == UsageError.exit_code
    assert "choose another --gpu" in capsys.readouterr().err
