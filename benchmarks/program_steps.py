"""Programs of PyTorch, as people run them in FP32: each function makes one and returns its step.

Weights and data are random, so nothing is downloaded; what is drawn is drawn on the host, so that the GPU's
generator stays as it was. A step has no arguments and returns nothing that is read. `PROGRAMS` names all of
them, and says how small each can be for a test. Needs torch; some need transformers, gpytorch or
torch_geometric.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

Step = Callable[[], object]
FEATURES, CLASSES = 500, 3  # of the graph: as many as PubMed has
DENSE, SPARSE = 13, 26  # features of DLRM: as Criteo's


class Program(NamedTuple):
    """`make(device, **extents)` returns a step. `tiny`: extents for a test. `waits`: a step waits for the
    GPU, so no graph can capture it. `is_own`: one of the five others."""

    make: Callable[..., Step]
    tiny: Mapping[str, int]
    waits: bool = False
    is_own: bool = False


def _inference(model: nn.Module, device: str, call: Callable[[nn.Module], object]) -> Step:
    model = model.to(device).eval()

    def step() -> object:
        with torch.no_grad():
            return call(model)

    return step


def _training(model: nn.Module, loss: Callable[[], Any], optimizer: Any) -> Step:
    """A step of a model in train mode, without dropout."""
    model.train()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        optimizer.step()

    return step


def _adam(model: nn.Module, device: str) -> Any:
    """`capturable` keeps its counts on the GPU, so that a graph may hold a step."""
    return torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=device != "cpu")


def _mlp(*widths: int, between: type[nn.Module] = nn.ReLU, last: type[nn.Module] | None = None) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), between()]
    return nn.Sequential(*layers[:-1], *([] if last is None else [last()]))


def bert_config(layers: int, width: int) -> Any:
    from transformers import BertConfig

    return BertConfig(
        num_hidden_layers=layers, hidden_size=width, num_attention_heads=width // 64,
        intermediate_size=4 * width, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip


def bert(device: str, *, layers: int = 12, width: int = 768, num_batches: int = 4, batch: int = 8) -> Step:
    """BERT-base: batches of texts of 37 to 203 tokens, sorted by length and padded to their longest."""
    from transformers import BertModel

    lengths = torch.randint(37, 204, (num_batches * batch,)).sort().values
    lengths[0], lengths[-1] = 37, 203
    batches = []
    for some in lengths.split(batch):
        tokens = torch.randint(1000, 30000, (batch, int(some.max())))
        mask = (torch.arange(tokens.shape[1]) < some[:, None]).long()
        batches.append({"input_ids": tokens.to(device), "attention_mask": mask.to(device)})
    model = BertModel(bert_config(layers, width))
    return _inference(model, device, lambda model: [model(**one).pooler_output for one in batches])


def bert_training(
    device: str, *, layers: int = 6, width: int = 768, batch: int = 16, length: int = 128
) -> Step:
    """A BERT of six layers learns to classify texts."""
    from transformers import BertForSequenceClassification

    model = BertForSequenceClassification(bert_config(layers, width)).to(device)
    tokens = torch.randint(1000, 30000, (batch, length)).to(device)
    labels = torch.randint(0, 2, (batch,)).to(device)
    optimizer = _adam(model, device)
    return _training(model, lambda: model(input_ids=tokens, labels=labels).loss, optimizer)


def gpt2(device: str, *, layers: int = 12, width: int = 768, batch: int = 4, new: int = 12) -> Step:
    """GPT-2 continues four prompts by twelve tokens, greedily, with its cache of keys and values."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=layers, n_embd=width, n_head=width // 64)
    prompts = torch.randint(1000, 30000, (batch, 16)).to(device)
    options = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 50256}
    mask = torch.ones_like(prompts)

    def generate(model: Any) -> object:
        return model.generate(prompts, attention_mask=mask, **options)

    return _inference(GPT2LMHeadModel(config), device, generate)


def vit(device: str, *, layers: int = 12, width: int = 768, batch: int = 16) -> Step:
    """ViT-B/16 on images of 224 x 224."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
    )
    images = torch.randn(batch, 3, 224, 224).to(device)
    return _inference(ViTModel(config), device, lambda model: model(pixel_values=images).pooler_output)


def gp(device: str, *, points: int = 3000) -> Step:
    """An exact Gaussian process of gpytorch: a step on its marginal likelihood."""
    import gpytorch

    x = torch.rand(points, 4).to(device)
    y = torch.sin(6 * x.sum(1)) + 0.1 * torch.randn(points).to(device)

    class Exact(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model = Exact().to(device)
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return _training(model, lambda: -marginal(model(x), y), optimizer)


class _Attention(nn.Module):
    """A layer of graph attention, for where torch_geometric is missing."""

    def __init__(self, inputs: int, outputs: int, heads: int = 1) -> None:
        super().__init__()
        self.heads, self.outputs = heads, outputs
        self.linear = nn.Linear(inputs, heads * outputs, bias=False)
        self.ends = nn.Parameter(torch.randn(2, heads, outputs) / outputs**0.5)

    def forward(self, x: Any, edges: Any) -> Any:
        source, target = edges
        values = self.linear(x).view(-1, self.heads, self.outputs)
        ends = (values * self.ends[:, None]).sum(-1)
        weights = functional.leaky_relu(ends[0, source] + ends[1, target], 0.2).exp()
        total = weights.new_zeros(len(x), self.heads).index_add(0, target, weights)
        messages = values[source] * (weights / total[target]).unsqueeze(-1)
        return torch.zeros_like(values).index_add(0, target, messages).flatten(1)


def gat(device: str, *, nodes: int = 19717, edges: int = 88648) -> Step:
    """A GAT of two layers learns on a random graph of PubMed's size."""
    attention: Callable[..., nn.Module] = _Attention
    with suppress(ImportError):
        from torch_geometric.nn import GATConv

        attention = partial(GATConv, add_self_loops=False)  # the graph has them
    first, second = attention(FEATURES, 8, heads=8), attention(64, CLASSES, heads=1)
    model = nn.ModuleList([first, second]).to(device)
    x, labels = torch.randn(nodes, FEATURES).to(device), torch.randint(0, CLASSES, (nodes,)).to(device)
    loops = torch.arange(nodes).repeat(2, 1)
    graph = torch.cat([torch.randint(0, nodes, (2, edges)), loops], 1).to(device)

    def loss() -> Any:
        return functional.cross_entropy(second(functional.elu(first(x, graph)), graph), labels)

    return _training(model, loss, _adam(model, device))


def policy(device: str, *, batch: int = 32, width: int = 256) -> Step:
    """A policy of a robot: 67 observations, 21 joints."""
    observed = torch.randn(batch, 67).to(device)
    model = _mlp(67, width, width, 21, between=nn.Tanh, last=nn.Tanh)
    return _inference(model, device, lambda model: model(observed))


class _Dlrm(nn.Module):
    def __init__(self, rows: int, width: int, wide: int) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(SPARSE))
        self.bottom = _mlp(DENSE, wide, wide // 2, width, last=nn.ReLU)
        pairs = (SPARSE + 1) * SPARSE // 2
        self.top = _mlp(width + pairs, wide, wide // 2, 1)
        self.register_buffer("pairs", torch.tril_indices(SPARSE + 1, SPARSE + 1, -1))

    def forward(self, dense: Any, ids: Any, starts: Any) -> Any:
        dense = self.bottom(dense)
        found = [bag(one, starts) for bag, one in zip(self.bags, ids, strict=True)]
        features = torch.stack([dense, *found], 1)
        products = torch.bmm(features, features.transpose(1, 2))
        return self.top(torch.cat([dense, products[:, self.pairs[0], self.pairs[1]]], 1)).squeeze(1)


def dlrm(device: str, *, batch: int = 2048, rows: int = 20000, width: int = 64, wide: int = 512) -> Step:
    """DLRM learns clicks: bags of 26 features, MLPs 13-512-256-64 and 512-256-1, dot interaction."""
    model = _Dlrm(rows, width, wide).to(device)
    dense, clicks = torch.randn(batch, DENSE).to(device), torch.randint(0, 2, (batch,)).float().to(device)
    ids = torch.randint(0, rows, (SPARSE, batch)).to(device)
    starts = torch.arange(batch).to(device)

    def loss() -> Any:
        return functional.binary_cross_entropy_with_logits(model(dense, ids, starts), clicks)

    return _training(model, loss, torch.optim.SGD(model.parameters(), lr=0.01))


def wav2vec2(
    device: str, *, layers: int = 12, width: int = 768, batch: int = 4, samples: int = 80000
) -> Step:
    """wav2vec 2.0 base on four times five seconds of sound."""
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    config = Wav2Vec2Config(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
    )
    valid = torch.randn(batch, samples).to(device)
    return _inference(Wav2Vec2Model(config), device, lambda model: model(valid).last_hidden_state)


def neural_ode(device: str, *, batch: int = 256, width: int = 512, num_steps: int = 20) -> Step:
    """A neural ODE of 128 dimensions, an MLP 128-512-512-128, solved by classical Runge-Kutta steps."""
    start = torch.randn(batch, 128).to(device)
    h = 1.0 / num_steps

    def solve(slope: nn.Module) -> Any:
        y = start
        for _ in range(num_steps):
            k1 = slope(y)
            k2 = slope(y + h / 2 * k1)
            k3 = slope(y + h / 2 * k2)
            k4 = slope(y + h * k3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y

    return _inference(_mlp(128, width, width, 128, between=nn.Tanh), device, solve)


class _Experts(nn.Module):
    """A router in FP32 that sends each token to two experts."""

    def __init__(self, width: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(_mlp(width, hidden, width, between=nn.SiLU) for _ in range(experts))

    def forward(self, x: Any) -> Any:
        shares, chosen = self.router(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            tokens, place = (chosen == number).nonzero(as_tuple=True)
            out.index_add_(0, tokens, expert(x[tokens]) * shares[tokens, place, None])
        return out


def experts(device: str, *, tokens: int = 256, width: int = 1024, hidden: int = 1408, num: int = 64) -> Step:
    """A layer of a mixture of experts: each takes the tokens that its router sends it."""
    x = torch.randn(tokens, width).to(device)
    return _inference(_Experts(width, hidden, num), device, lambda model: model(x))


def conjugate_gradients(device: str, *, points: int = 4096, columns: int = 10, num_steps: int = 20) -> Step:
    """What a Gaussian process solves: kernel matrix by ten columns at each step."""
    x = torch.rand(points, 3).to(device)
    matrix = torch.exp(-4 * torch.cdist(x, x).square()) + torch.eye(points).to(device)
    right = torch.randn(points, columns).to(device)

    def solve(_: nn.Module) -> Any:
        found, residual = torch.zeros_like(right), right.clone()
        direction, size = residual, residual.square().sum(0)
        for _ in range(num_steps):
            product = matrix @ direction
            pace = size / (direction * product).sum(0)
            found, residual = found + pace * direction, residual - pace * product
            before, size = size, residual.square().sum(0)
            direction = residual + size / before * direction
        return found

    return _inference(nn.Identity(), device, solve)


class _Potential(nn.Module):
    def __init__(self, width: int, radial: int) -> None:
        super().__init__()
        self.centers: Any
        self.register_buffer("centers", torch.linspace(0.5, 5.0, radial))
        self.filter = _mlp(radial, width, width, between=nn.SiLU)
        self.update = _mlp(width, width, width, between=nn.SiLU)
        self.energy = _mlp(width, width, 1, between=nn.SiLU)
        self.atoms = nn.Parameter(torch.randn(1, width))

    def forward(self, places: Any, edges: Any) -> Any:
        source, target = edges
        distances = (places[source] - places[target]).square().sum(1).add(1e-6).sqrt()
        filters = self.filter(torch.exp(-((distances[:, None] - self.centers) ** 2)))
        atoms = self.atoms.expand(len(places), -1)
        for _ in range(2):
            messages = atoms.new_zeros(atoms.shape).index_add(0, target, atoms[source] * filters)
            atoms = atoms + self.update(messages)
        return self.energy(atoms).sum()


def potential(
    device: str, *, atoms: int = 1024, edges: int = 20480, width: int = 64, radial: int = 8
) -> Step:
    """An interatomic potential learns forces: edges x 64 x 8, gradients of gradients."""
    model = _Potential(width, radial).to(device)
    places = (5 * torch.rand(atoms, 3)).to(device).requires_grad_()
    forces, graph = torch.randn(atoms, 3).to(device), torch.randint(0, atoms, (2, edges)).to(device)

    def loss() -> Any:
        (slope,) = torch.autograd.grad(model(places, graph), places, create_graph=True)
        return (slope + forces).square().mean()

    return _training(model, loss, _adam(model, device))


def decoder(device: str, *, layers: int = 6, width: int = 512, batch: int = 16, length: int = 64) -> Step:
    """A translator's decoder, one token further: it attends to 31 tokens before and to the whole source."""
    layer = nn.TransformerDecoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True)
    model = nn.TransformerDecoder(layer, layers)
    source, target = torch.randn(batch, length, width).to(device), torch.randn(batch, 32, width).to(device)
    words = nn.Linear(width, 16000).to(device)
    return _inference(model, device, lambda model: words(model(target, source)[:, -1]).argmax(-1))


def autoencoder(device: str, *, batch: int = 512, inputs: int = 784, wide: int = 512) -> Step:
    """An autoencoder of digits learns: 784-512-256-32-256-512-784."""
    model = _mlp(inputs, wide, wide // 2, 32, wide // 2, wide, inputs, last=nn.Sigmoid).to(device)
    images = torch.rand(batch, inputs).to(device)
    return _training(model, lambda: functional.mse_loss(model(images), images), _adam(model, device))


_SMALL = {"layers": 1, "width": 64}
PROGRAMS = {
    "bert": Program(bert, _SMALL | {"num_batches": 2, "batch": 2}),
    "bert_training": Program(bert_training, _SMALL | {"batch": 2, "length": 9}),
    "gpt2": Program(gpt2, _SMALL | {"batch": 2, "new": 2}, waits=True),
    "vit": Program(vit, _SMALL | {"batch": 1}),
    "gp": Program(gp, {"points": 40}, waits=True),
    "gat": Program(gat, {"nodes": 30, "edges": 60}),
    "policy": Program(policy, {"batch": 4, "width": 8}),
    "dlrm": Program(dlrm, {"batch": 4, "rows": 10, "width": 4, "wide": 8}),
    "wav2vec2": Program(wav2vec2, _SMALL | {"batch": 1, "samples": 2000}),
    "neural_ode": Program(neural_ode, {"batch": 4, "width": 8, "num_steps": 2}),
    "experts": Program(experts, {"tokens": 6, "width": 8, "hidden": 8, "num": 3}, waits=True, is_own=True),
    "conjugate_gradients": Program(conjugate_gradients, {"points": 20, "num_steps": 3}, is_own=True),
    "potential": Program(potential, {"atoms": 8, "edges": 20, "width": 8}, is_own=True),
    "decoder": Program(decoder, _SMALL | {"batch": 2, "length": 5}, is_own=True),
    "autoencoder": Program(autoencoder, {"batch": 4, "inputs": 12, "wide": 8}, is_own=True),
}
