"""Lists of shapes as people have them, and what is told of those that cannot be read."""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from autotune.cli.common import read_calls as read_calls_of
from autotune.facts.gemm import Gemm
from autotune.files.errors import UsageError
from autotune.kernel.launch import EPILOGUES
from autotune.suite import CallSignature, read_calls, read_suite

ROWS = "512,64,32,NT,4,7\n16,8,24,NN,1,2\n"
SHAPES = {"512x64x32b4:NT": 7, "16x8x24:NN": 2}


def shapes_of(path: Path, content: str | bytes, notes: list[str] | None = None) -> dict[str, int | None]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    notes = [] if notes is None else notes
    return {str(gemm): count for gemm, count in read_suite(path, note=notes.append).items()}


@pytest.mark.parametrize(
    "header",
    [
        "m,n,k,layout,batch,count",
        "M,N,K,Layout,Batch,Count",
        ' "m" , "N","k",layout,batch_count,calls',
    ],
)
@pytest.mark.parametrize("separator", [",", ";", "\t", " ", " ; "])
@pytest.mark.parametrize("name", ["shapes.csv", "shapes.txt", "shapes"])
def test_a_csv_is_read_whatever_separates_it(tmp_path: Path, header: str, separator: str, name: str) -> None:
    if separator == " ":
        header = header.replace(" ", "").replace('"', "")
    assert shapes_of(tmp_path / name, f"{header}\n{ROWS}".replace(",", separator)) == SHAPES


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n", "\n# said by nobody\n"])
@pytest.mark.parametrize("is_packed", [False, True])
def test_marks_ends_of_lines_comments_and_gzip(tmp_path, encoding, end, is_packed) -> None:
    content = f"{end}m,n,k,layout,batch,count\n{ROWS}".replace("\n", end).encode(encoding)
    assert shapes_of(tmp_path / "s.csv", gzip.compress(content) if is_packed else content) == SHAPES


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("4,5,6\n7,8,9\n", ["4x5x6:NN", "7x8x9:NN"]),  # m, n, k without a header
        ("4 5 6", ["4x5x6:NN"]),
        ("k,m,n\n6,4,5\n", ["4x5x6:NN"]),
        ("m,n,k,transA,transB\n4,5,6,T,N\n4,5,6,0,1\n4,5,6,False,TRUE\n4,5,6,,c", ["4x5x6:TN", "4x5x6:NT"]),
        ("m,n,k,a_t\n4,5,6,1", ["4x5x6:TN"]),
        ("m,n,k,layout,batch,\n4.0,5.,6.000,,,\n", ["4x5x6:NN"]),  # as others write a table with gaps
        ("m,n,k,batch,shared\n4,5,6,2,a", ["4x5x6b2:NN:shared-a"]),
        ('m,n,k,note\n4,5,6,"one\n\ntwo, ""three"""\n7,8,9,\n', ["4x5x6:NN", "7x8x9:NN"]),
    ],
)
def test_what_a_csv_may_leave_out(tmp_path: Path, text: str, shapes: list[str]) -> None:
    assert list(shapes_of(tmp_path / "s.csv", text)) == shapes


def test_columns_that_nobody_knows_are_named(tmp_path: Path) -> None:
    notes: list[str] = []
    shapes_of(tmp_path / "s.csv", "name,m,n,k,ms\nhead,4,5,6,0.5\n", notes)
    assert notes == [f"{tmp_path / 's.csv'}: of its columns, name, ms are not used"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m,n,k\n4,5\n", "line 2: expected 3 values, found 2"),
        ("m,n,k\n# a comment\n\n4,5,x\n", "line 4: k is 'x', and not a whole number"),
        ("m,n,k\n4,5,6.5\n", "line 2: k is '6.5', and not a whole number"),
        ("m,n,k\n4,5,\n", "line 2: the key 'k' is missing"),
        ("m,n,k\n4,5,NaN\n", "line 2: k is 'NaN'"),
        ("m,n,k\n4,5,-6\n", "line 2: k is -6, expected a whole number"),
        ("m,n,k,m\n4,5,6,7\n", "the column 'm' is there twice"),
        ("m,n,k,layout\n4,5,6,XY\n", "line 2: layout 'XY' is none of"),
        ("m,n,k,transa\n4,5,6,maybe\n", "line 2: trans_a and trans_b are"),
        ("m,n,k,count\n4,5,6,1\n4,5,7,\n", "line 3: the key 'count' is missing, which others have"),
        ("m,n,k\n", "it holds no shape"),
        ("m;n\n1;2\n", "it is no list of shapes: 'm;n'; write .* a CSV of m,n,k"),
        ("", "it is no list of shapes"),
        ('m,n,k,note\n4,5,6,"open\n7,8,9,x\n', "line 3: unexpected end of data"),
        ('m,n,k\n"' + "4" * 200_000, "field larger than field limit"),
    ],
)
def test_a_csv_that_cannot_be_read_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as rejected:
        shapes_of(tmp_path / "s.csv", text)
    assert str(tmp_path / "s.csv") in str(rejected.value) and "\n" not in str(rejected.value)


@pytest.mark.parametrize("name", ["s.json", "s.jsonl", "s.txt", "s"])
@pytest.mark.parametrize(
    "listed",
    [
        [[4, 5, 6], [7, 8, 9]],
        [{"m": 4, "n": 5, "k": 6}, {"M": 7.0, "N": "8", "K": 9, "layout": "nn"}],
        ["4x5x6", "7x8x9:NN"],
        [[4, 5, 6], {"m": 7, "n": 8, "k": 9, "batch": 1}],
    ],
)
def test_lists_of_json_are_read(tmp_path: Path, name: str, listed: list) -> None:
    expected = {"4x5x6:NN": None, "7x8x9:NN": None}
    assert shapes_of(tmp_path / name, json.dumps(listed)) == expected
    assert shapes_of(tmp_path / name, json.dumps(listed, indent=1)) == expected
    assert shapes_of(tmp_path / name, json.dumps(listed[1])) == {"7x8x9:NN": None}  # a line alone
    assert shapes_of(tmp_path / name, "\ufeff" + "\r\n".join(map(json.dumps, listed))) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[4, 5]]", r"shape 1: \[4, 5\] is no object with m, n and k, no \[m, n, k\], and no text"),
        ("[4, 5]", r"shape 1: \[4, 5\] is no object"),
        ('[{"M": 4, "n": 5, "k": 6, "m": 7}]', "shape 1: .* names something twice"),
        ('[{"m": 4, "n": 5}]', "shape 1: the key 'k' is missing"),
        ('[{"m": 4, "n": 5, "k": NaN}]', "shape 1: k is nan"),
        ('[{"m": 4, "n": 5, "k": true}]', "shape 1: k is True"),
        ('[{"m": 4, "n": 5, "k": {"is": [6]}}]', "shape 1: k is {'is'"),
        ('["4by5"]', "shape 1: shape '4by5' is neither"),
        ("[null]", r"shape 1: \[None\] is no object"),
        ("[]", "it holds no shape"),
        ("[[4, 5, 6]", "is not a suite"),
        ('{"m": 4, "n": 5, "k": 6}\n{"m": 4, "n":', "s.json is not a suite: line 2: "),
        ("[4, 5, 6]\n[4, 5", "s.json is not a suite: line 2: "),
        ("[" * 5000, "is not a suite"),
    ],
)
def test_a_list_of_json_that_cannot_be_read_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        shapes_of(tmp_path / "s.json", text)


# ---- PyTorch's TunableOp

TUNABLE = """\
Validator,PT_VERSION,2.11.0
Validator,ROCBLAS_VERSION,4.2.0
GemmTunableOp_float_TN,tn_2_7_3_ld_3_3_2,Gemm_Rocblas_1219,1.262
GemmTunableOp_tf32_NN,nn_2_7_3,Default,0.03
GemmAndBiasTunableOp_float_NT,nt_2_7_3_ld_4_8_6_bias_None,Default,0.03
GemmStridedBatchedTunableOp_float_TT,tt_2_7_3_B_5_ld_3_7_2,Default,0.03
GemmTunableOp_Half_TN,tn_2_7_3,Default,0.03
ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_BFloat16_TN,tn_2_7_3_rw_1_bias_None,Default,0.03
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_tunable_op_stored_is_read_by_rows(tmp_path: Path, end: str) -> None:
    path, notes = tmp_path / "tunableop_results0.csv", []
    path.write_text(TUNABLE, newline=end)
    expected = [
        CallSignature(Gemm.parse("7x2x3:NT"), (3, 3, 2)),
        CallSignature.packed(Gemm.parse("7x2x3:NN")),
        CallSignature(Gemm.parse("7x2x3:TN"), (8, 4, 6), epilogue=EPILOGUES["bias"]),
        CallSignature(Gemm.parse("7x2x3b5:TT"), (7, 3, 2)),
    ]
    assert list(read_calls(path, notes.append).calls) == expected
    assert "products that are not of FP32 are left out: 1 of Half, 1 of Float8_e4m3fn_" in notes[0]
    assert "column-major: m and n, and the operands, change places" in notes[1]


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_a_product_by_columns_is_this_one_by_rows(tmp_path: Path, trans_a: bool, trans_b: bool) -> None:
    """The memory of all three matrices is the same."""
    rng, (m, n, k) = np.random.default_rng(0), (2, 7, 3)
    a, b = rng.random((k, m) if trans_a else (m, k)), rng.random((n, k) if trans_b else (k, n))
    c = (a.T if trans_a else a) @ (b.T if trans_b else b)
    flags = "".join("t" if flag else "n" for flag in (trans_a, trans_b))
    (gemm,) = (
        Gemm.parse(shape)
        for shape in shapes_of(tmp_path / "t.csv", f"GemmTunableOp_float_{flags.upper()},{flags}_2_7_3,x,1\n")
    )
    first = b.ravel(order="F").reshape((gemm.k, gemm.m) if gemm.trans_a else (gemm.m, gemm.k))
    second = a.ravel(order="F").reshape((gemm.n, gemm.k) if gemm.trans_b else (gemm.k, gemm.n))
    product = (first.T if gemm.trans_a else first) @ (second.T if gemm.trans_b else second)
    np.testing.assert_allclose(product.ravel(), c.ravel(order="F"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("GemmTunableOp_Half_TN,tn_2_7_3,x,1\n", "holds no product of FP32"),
        ("GemmTunableOp_float_TN,tn_2_7,x,1\n", "line 1: 'tn_2_7,x,1' is not as PyTorch names a product"),
        ("GemmTunableOp_float_TN\n", "line 1: '' is not as"),
    ],
)
def test_what_tunable_op_never_writes_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        shapes_of(tmp_path / "t.csv", text)


_BENCH = "./rocblas-bench -f gemm"
_LT = "hipblaslt-bench --api_method c -m 2 -n 7 -k 3 --lda 2 --alpha 1.000000 --beta -1 --transA N"
_YAML = '- { rocblas_function: "rocblas_'


@pytest.mark.parametrize(
    ("log", "shapes"),
    [
        (
            f"{_BENCH} -r f32_r --transposeA N --transposeB T -m 2 -n 7 -k 3 --alpha 1 --lda 2\n"
            f"{_BENCH}_ex --transposeA T --transposeB N -m 4 -n 5 -k 6 --alpha 1 --a_type f32_r --lda 6\n"
            f"{_BENCH}_ex --transposeA T --transposeB N -m 4 -n 9 -k 6 --a_type f16_r --compute_type f32_r\n"
            "./rocblas-bench -f trsm -r f32_r --side L -m 4 -n 9 --alpha 1 --lda 4\n"
            f"{_BENCH}_strided_batched -r s --transposeA C --transposeB N -m 8 -n 1 -k 6 --batch_count 5\n",
            {"7x2x3:TN": 1, "5x4x6:NT": 1, "1x8x6b5:NT": 1},
        ),
        (
            f"{_LT} --transB T --batch_count 1 --a_type f32_r --b_type f32_r --compute_type f32_r\n"
            f"{_LT} --transB N --batch_count 4 --a_type f32_r --b_type f32_r --compute_type f32_r\n"
            f"{_LT} --transB N --batch_count 1 --a_type bf16_r --b_type bf16_r --compute_type f32_r\n",
            {"7x2x3:TN": 1, "7x2x3b4:NN": 1},
        ),
        (
            _YAML + "sgemm\", atomics_mode: atomics_allowed, transA: 'N', transB: 'T', M: 2, N: 7, K: 3,"
            " alpha: 1, lda: 2, ldb: 7, beta: 0, ldc: 2, call_count: 12 }\n"
            + _YAML + "gemm_ex\", transA: 'N', transB: 'N', M: 2, N: 7, K: 3, a_type: \"f32_r\","
            + " call_count: 3 }\n"
            + _YAML + "hgemm\", transA: 'N', transB: 'N', M: 2, N: 9, K: 3, call_count: 3 }\n",
            {"7x2x3:TN": 12, "7x2x3:NN": 3},
        ),
        (
            "rocblas_create_handle\nrocblas_sgemm,N,T,2,7,3,-1,0x7f12,2,0x7f13,7,0,0x7f14,2,atomics_allowed\n"
            "rocblas_sgemm_strided_batched,T,N,4,5,6,1,0x7f,6,24,0x8f,6,30,0,0x9f,4,20,9,atomics_allowed\n",
            {"7x2x3:TN": 1, "5x4x6b9:NT": 1},
        ),
    ],
)  # fmt: skip
def test_a_log_of_rocblas_is_converted_by_the_line_that_is_told(tmp_path: Path, log, shapes) -> None:
    """Its products are column-major."""
    with pytest.raises(UsageError, match="looks like a log of rocBLAS") as rejected:
        shapes_of(tmp_path / "FILE", log)
    line = str(rejected.value).partition("products of FP32: ")[2].partition("; write")[0]
    subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True)
    found = {str(gemm): count for gemm, count in read_suite(tmp_path / "shapes.csv").items()}
    assert found == shapes


_PRINTED = "transA,transB,M,N,K,alpha,lda,beta,ldb,ldc,rocblas-Gflops,us\n"


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        (
            "Query device success: there are 1 devices, a, b\nrocBLAS info: ...\n"
            f"{_PRINTED}N,T,2,7,3,1,2,0,7,2,99.5,2\n{_PRINTED}T,N,4,5,6,1,6,0,6,4,9.5,3\nall done\n",
            {"7x2x3:TN": None, "5x4x6:NT": None},
        ),
        (
            "[0]:transA,transB,batch_count,m,n,k,a_type,hipblaslt-Gflops,us\n"
            "    N,T,4,2,7,3,f32_r,99.5,2\n    N,T,1,2,9,3,f16_r,99.5,2\n",
            {"7x2x3b4:TN": None},
        ),
        (_PRINTED.replace("transA,transB,", "").lower() + "2,7,3,1,2,0,7,2,99.5,2\n", {"7x2x3:NN": None}),
    ],
)
def test_what_a_benchmark_of_rocblas_prints_is_read_by_rows(tmp_path: Path, text: str, shapes) -> None:
    notes: list[str] = []
    assert shapes_of(tmp_path / "s.csv", text, notes) == shapes and "column-major" in notes[0]


# ---- TOML


def test_a_suite_may_begin_with_a_mark_and_mention_rocblas(tmp_path: Path) -> None:
    text = "\ufeffnotes = 'from rocblas'\r\n[[shape]]\r\nm = 4\r\nn = 5\r\nk = 6\r\n"
    assert shapes_of(tmp_path / "s.toml", text) == {"4x5x6:NN": None}
    assert shapes_of(tmp_path / "s.toml", text[1:].encode("utf-16")) == {"4x5x6:NN": None}


@pytest.mark.parametrize(("key", "intended"), [("M", "m"), ("Batch", "batch"), ("LAYOUT", "layout")])
def test_a_key_in_capitals_gets_a_hint(tmp_path: Path, key: str, intended: str) -> None:
    with pytest.raises(UsageError, match=f"unknown key '{key}' .did you mean '{intended}'"):
        shapes_of(tmp_path / "s.toml", f"[[shape]]\n{key} = 4\nn = 5\nk = 6\n")


@pytest.mark.parametrize("name", ["s.toml", "s.csv"])
def test_a_shape_without_output_is_refused_by_file(tmp_path: Path, name: str) -> None:
    text = "m,n,k\n0,5,6\n" if name == "s.csv" else "[[shape]]\nm = 0\nn = 5\nk = 6\n"
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=rf"{name}: 0x5x6:NN: C is empty"):
        read_calls_of([tmp_path / name])
