"""Products of CuPy's arrays by an exported table: the shape need not be one that was tuned."""

import cupy

import sgemm_dispatch

a = cupy.random.standard_normal((35, 2048), dtype=cupy.float32)
b = cupy.random.standard_normal((2048, 700), dtype=cupy.float32)
out = cupy.zeros((35, 700), dtype=cupy.float32)

with cupy.cuda.Stream(non_blocking=True) as stream:
    sgemm_dispatch.sgemm(a, b, out=out, alpha=0.5, beta=1.0)  # on this stream
stream.synchronize()
cupy.testing.assert_allclose(out, 0.5 * (a @ b), rtol=1e-4, atol=5e-3)

print(sgemm_dispatch.pick(35, 700, 2048))  # which kernel, and why this one
