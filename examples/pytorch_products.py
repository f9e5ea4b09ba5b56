"""Products of PyTorch's tensors by an exported table.

autotune search --gpu 0 --shape 4096 --seconds 60
autotune export-table
python examples/pytorch_products.py
"""

import torch

import sgemm_dispatch

a = torch.randn(4096, 4096, device="cuda")
b = torch.randn(4096, 4096, device="cuda")
out = torch.empty(4096, 4096, device="cuda")

sgemm_dispatch.sgemm(a, b, out=out)  # on torch's current stream
worst = (out.double() - a.double() @ b.double()).abs().max().item()
print(f"largest difference from float64: {worst:.1e}")

c = sgemm_dispatch.sgemm(a, b, alpha=2.0, trans_b=True)  # a new tensor: 2 * a @ b.T
torch.testing.assert_close(c, 2 * a @ b.T, rtol=1e-4, atol=5e-3)

print(sgemm_dispatch.pick(4096, 4096, 4096))  # which kernel, and why this one
