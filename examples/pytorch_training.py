"""A training that stays as it is: within the context the table serves its FP32 products, backward
passes included, where a kernel is predicted to be faster than cuBLAS.

python examples/pytorch_training.py, or without a change to a program: python -m sgemm_dispatch train.py
"""

import torch

import sgemm_dispatch

model = torch.nn.Sequential(torch.nn.Linear(768, 3072), torch.nn.GELU(), torch.nn.Linear(3072, 768)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
data = torch.randn(256, 768, device="cuda")

with sgemm_dispatch.torch() as routing:
    for _ in range(20):
        optimizer.zero_grad()
        loss = (model(data) - data).square().mean()
        loss.backward()
        optimizer.step()
print(f"loss: {loss.item():.4f}")
print(routing.report())  # products served and left alone, why, and the time that is expected to be saved
