#!/bin/sh
# torch's linear layer with a bias takes up to 2.7 times as long as the same product without one, by default.
#
# Versions: torch 2.11.0 with CUDA 13.0 (cuBLAS 13.1), Python 3.11 and later; a Hopper GPU (seen on an H200).
#
# One would guess: linear(x, weight, bias) adds the bias within the product, so that it takes what x @ weight.T takes, as
# both are the same cuBLAS in FP32; and where they differ, that the fused one is faster.
# Seen: with a bias torch calls cublasLtMatmul, to which it gives a workspace of 1 MiB, while the product without goes to
# cublasSgemm with 32 MiB. In 1 MiB most splits of k do not fit, so cuBLASLt's heuristic names kernels that do not split:
# 1.36 times as long for 1024x768x3072 (BERT's second feed-forward layer), 2.7 times for 128x128x32768.
# CUBLASLT_WORKSPACE_SIZE=32768 (KiB), set before the first product, ends it; the last bits of results change with it.
# Why it matters: every linear layer of an FP32 model calls this. A kernel that is compared with x @ weight.T, or with
# cublasSgemm, is compared with what the model does not run; and advice to leave a layer to cuBLAS may cost a third.
#
# Output seen:
#     1024x768x3072: linear takes more than 1.2 times the product: True
#     128x128x32768: linear takes more than 1.2 times the product: True
#     with CUBLASLT_WORKSPACE_SIZE=32768
#     1024x768x3072: linear takes more than 1.2 times the product: False
#     128x128x32768: linear takes more than 1.2 times the product: False
set -eu
PYTHON=${PYTHON:-python3}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# A machine without a network may name a Python that has this torch: TORCH_PYTHON=/path/to/python
if [ -n "${TORCH_PYTHON:-}" ]; then
    python=$TORCH_PYTHON
else
    "$PYTHON" -m venv "$folder/venv"
    python=$folder/venv/bin/python
    "$python" -m pip install --quiet --disable-pip-version-check torch==2.11.0 numpy
fi
cat >"$folder/program.py" <<'PROGRAM'
import statistics
import sys

import torch

assert torch.__version__.startswith("2.11.0"), torch.__version__
torch.backends.cuda.matmul.allow_tf32 = False


def taken_us(call):
    call()
    times = []
    for _ in range(31):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(400_000)  # so that the host is ahead of the GPU
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * begin.elapsed_time(end))
    return statistics.median(times)


for m, n, k in ((1024, 768, 3072), (128, 128, 32768)):
    x, weight, bias = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda"), torch.randn(n, device="cuda")
    linear_us = taken_us(lambda: torch.nn.functional.linear(x, weight, bias))
    product_us = taken_us(lambda: torch.mm(x, weight.T))
    print(f"{m}x{n}x{k}: {linear_us:.1f} and {product_us:.1f} us", file=sys.stderr)
    print(f"{m}x{n}x{k}: linear takes more than 1.2 times the product: {linear_us > 1.2 * product_us}")
PROGRAM
{
    "$python" "$folder/program.py"
    echo "with CUBLASLT_WORKSPACE_SIZE=32768"
    CUBLASLT_WORKSPACE_SIZE=32768 "$python" "$folder/program.py"
} >"$folder/seen"
cat "$folder/seen"
cat >"$folder/expected" <<'EXPECTED'
1024x768x3072: linear takes more than 1.2 times the product: True
128x128x32768: linear takes more than 1.2 times the product: True
with CUBLASLT_WORKSPACE_SIZE=32768
1024x768x3072: linear takes more than 1.2 times the product: False
128x128x32768: linear takes more than 1.2 times the product: False
EXPECTED
cmp "$folder/seen" "$folder/expected"
