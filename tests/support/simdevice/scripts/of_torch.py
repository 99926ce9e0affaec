"""Checks of torch's operators and models on the device, compared with the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 48)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            each.unflatten(-1, (4, 4)).transpose(1, 2) for each in self.project(input).chunk(3, dim=-1)
        )
        with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
            return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16), nn.ReLU()), (5, 16)),
    "convolution": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.SiLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 4, 3, bias=False), nn.GroupNorm(2, 4), nn.ConvTranspose2d(4, 2, 3), nn.AdaptiveAvgPool2d(1)),
        ),
        (2, 3, 8, 8),
    ),
    "attention": (Attention, (2, 5, 16)),
}


def check_training_equals_the_cpus_to_the_bit() -> None:
    for name, (make, shape) in MODELS.items():
        for optimizer in (torch.optim.AdamW, torch.optim.SGD):
            torch.manual_seed(0)
            on_cpu = make()
            on_device = copy.deepcopy(on_cpu).to("sim")
            losses = []
            for model, device in ((on_cpu, "cpu"), (on_device, "sim")):
                random = torch.Generator().manual_seed(1)
                steps = optimizer(model.parameters(), lr=0.01)
                for _ in range(3):
                    loss = model(torch.randn(shape, generator=random).to(device)).square().mean()
                    loss.backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                    steps.step()
                    steps.zero_grad()
                    losses.append(loss.item())
            assert losses[:3] == losses[3:], (name, losses)
            for mine, theirs in zip(on_cpu.parameters(), on_device.parameters(), strict=True):
                assert torch.equal(mine, theirs.cpu()), name


def check_operators_equal_the_cpus() -> None:
    random = torch.Generator().manual_seed(5)
    x, i = torch.randn(4, 6, generator=random), torch.tensor([2, 0, 1])
    operators: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "views": lambda x, i: x.t()[1:, ::2].reshape(-1).unfold(0, 2, 1),
        "index": lambda x, i: x[i, i] + x.index_select(0, i)[:, 0] + x.gather(0, i.expand(2, 3)).sum(),
        "mask": lambda x, i: x[x > 0],
        "sort": lambda x, i: x.sort(dim=1, descending=True).values + x.topk(6).values,
        "where": lambda x, i: torch.where(torch.cat([x, x])[:4] > 0, 1.0, torch.stack([x, -x]).sum(0)),
        "einsum": lambda x, i: torch.einsum("ij,kj->ik", x, x).cumsum(0).softmax(-1).logsumexp(0),
        "foreach": lambda x, i: torch._foreach_add([x, x], 1.5)[1],
        "out": lambda x, i: torch.add(x, 1, out=torch.empty(0, device=x.device)),
        "factories": lambda x, i: (
            torch.arange(6, device=x.device) + torch.eye(6, device=x.device) + x.new_full((6,), 2)
        ),
        "scalars": lambda x, i: (x * torch.tensor(2.0) + 1) ** 2 / 3,
        "embedding": lambda x, i: nn.functional.embedding(i, x),
        "losses": lambda x, i: nn.functional.cross_entropy(x[:3], i) + nn.functional.mse_loss(x, x + 1),
        "complex": lambda x, i: torch.view_as_real(torch.fft.rfft(x)),
        "dtypes": lambda x, i: x.bfloat16().float() + x.double() + x.to(torch.int64),
        "unique": lambda x, i: i.repeat(2).unique(),
        "scatter": lambda x, i: torch.zeros_like(x).scatter_add_(0, i.expand(2, 3), x[:2, :3]).index_add(0, i, x[:3]),
    }
    for name, operator in operators.items():
        wanted, got = operator(x, i), operator(x.to("sim"), i.to("sim"))
        assert got.device.type == "sim", name
        assert torch.equal(wanted, got.cpu()), name
    assert torch.equal(x.to("sim"), x.to("sim"))


def check_autocast_and_grad_scaler() -> None:
    model = nn.Linear(4, 4).to("sim")
    scaler, optimizer = torch.amp.GradScaler("sim"), torch.optim.SGD(model.parameters(), 0.1)  # pyright: ignore
    with torch.autocast("sim", dtype=torch.bfloat16):
        output = model(torch.randn(2, 4, device="sim"))
        loss = nn.functional.mse_loss(output, torch.zeros_like(output))
    assert (output.dtype, loss.dtype) == (torch.bfloat16, torch.float32)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.isfinite(each).all() for each in model.parameters())
