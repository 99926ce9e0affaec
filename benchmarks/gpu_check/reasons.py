"""Training loops that are slow for one known reason, as people report them. Each runs on one GPU."""

from __future__ import annotations

import io
import json
import os
import threading
import time
import weakref
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from .programs import Marks, Program, Round, behind_loader, data, layers, trained
from .rig import Rig

WORK_MS = 5
"""How long the loops below are busy in Python or asleep, where that is what makes them slow."""


def spin(ms: float) -> None:
    """Python code that keeps Python's lock for ``ms`` milliseconds on a CPU."""
    end = time.thread_time() + ms / 1e3
    while time.thread_time() < end:
        pass


def empties_cache(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    model, step = trained(layers(rig, 12, 2048), data(rig, 512, 2048))

    def turn() -> None:
        step()
        torch.cuda.empty_cache()

    return model, turn


def one_parameter_at_a_time(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    model = layers(rig, 60, 1024)
    return trained(model, data(rig, 256, 1024), torch.optim.AdamW(model.parameters(), 1e-4, foreach=False))


def averages_weights(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    """Averages the weights one by one, a few times a step."""
    model, step = trained(layers(rig, 60, 1024), data(rig, 256, 1024))
    averages = [[parameter.detach().clone() for parameter in model.parameters()] for _ in range(3)]

    def average() -> None:
        for average in averages:
            for kept, parameter in zip(average, model.parameters(), strict=True):
                kept.mul_(0.999).add_(parameter.detach(), alpha=0.001)

    def turn() -> None:
        step()
        average()

    return model, turn


class Masked(nn.Module):
    """Selects rows by a mask: the host must wait for their number."""

    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = x.abs().sum(1) > 0
        out = torch.zeros_like(x)
        out[kept] = torch.relu(self.linear(x[kept]))
        return out


def selects_by_mask(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    torch.manual_seed(7)
    model = nn.Sequential(*(Masked(1024) for _ in range(16))).to(rig.device)
    return trained(model, data(rig, 2048, 1024))


def generates(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    """A language model of transformers generates 24 tokens before each step."""
    from transformers import LlamaConfig, LlamaForCausalLM  # pyright: ignore[reportMissingImports]

    torch.manual_seed(7)
    config = LlamaConfig(
        hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8, vocab_size=1000
    )
    model = LlamaForCausalLM(config).to(rig.device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    prompt = torch.arange(32, device=rig.device).repeat(8, 1)

    def turn() -> None:
        with torch.no_grad():
            tokens = model.generate(prompt, max_new_tokens=24, min_new_tokens=24, do_sample=False, pad_token_id=0)
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, turn


def draws_histograms(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    """Histograms of all weights on the host, in each fifth step."""
    model, step = trained(layers(rig, 16, 1024), data(rig, 4096, 1024))

    def histograms() -> None:
        for parameter in model.parameters():
            torch.histc(parameter.detach().cpu(), 64)

    def turn() -> None:
        for _ in range(5):
            step()
        histograms()

    return model, turn


def steps_on_host(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    """The optimizer's state is on the host: gradients are copied to it, and weights back."""
    model, x = layers(rig, 16, 1024), data(rig, 4096, 1024)
    weights = [nn.Parameter(parameter.detach().cpu()) for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(weights, 1e-4)

    def step() -> None:
        model(x).square().mean().backward()
        for weight, parameter in zip(weights, model.parameters(), strict=True):
            weight.grad = parameter.grad.cpu() if parameter.grad is not None else None
        optimizer.step()
        with torch.no_grad():
            for weight, parameter in zip(weights, model.parameters(), strict=True):
                parameter.copy_(weight)
        model.zero_grad()

    return model, step


def augments(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    """Python code between the batch and the model."""
    model = layers(rig, 16, 2048)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    host = torch.randn(256, 2048, generator=torch.Generator().manual_seed(1)).pin_memory()

    def augment(x: torch.Tensor) -> torch.Tensor:
        spin(WORK_MS)
        return x

    def step() -> None:
        x = augment(host).to(rig.device, non_blocking=True)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def logs_each_step(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    """Reads its loss and writes a line, with 5 ms of Python."""
    model, step = trained(layers(rig, 16, 2048), data(rig, 1024, 2048))
    written = io.StringIO()

    def write_metrics(loss: float) -> None:
        spin(WORK_MS)
        written.write(json.dumps({"loss": loss}))

    return model, lambda: write_metrics(step().item())


def thread_holds_lock(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    """A thread of the program computes in Python, and has Python's lock most of the time."""
    model, step = trained(layers(rig, 40, 512), data(rig, 256, 512))
    alive = weakref.ref(model)

    def tracks() -> None:
        while alive() is not None:
            sum(range(2000))

    threading.Thread(target=tracks, daemon=True).start()
    return model, step


class Decoded(Dataset[torch.Tensor]):
    """Samples that take 4 ms of Python each."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        spin(4)
        return torch.full((1024,), float(index % 7))


def decodes(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    """Four workers decode batches of 32 in Python."""
    loader = DataLoader(Decoded(), batch_size=32, num_workers=min(4, os.cpu_count() or 2), pin_memory=True)
    return behind_loader(rig, marks, layers(rig, 16, 1024), loader)


def recomputes(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    """Activation checkpointing of each layer."""
    from torch.utils.checkpoint import checkpoint

    model, x = layers(rig, 16, 4096), data(rig, 2048, 4096).requires_grad_()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def step() -> None:
        out: Any = x
        for layer in model:
            out = checkpoint(layer, out, use_reentrant=False)
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def evaluates_in_python(rig: Rig, marks: Marks) -> tuple[nn.Module, Round]:
    """Ten steps, then an evaluation in the loop, with metrics in Python."""
    model, step = trained(layers(rig, 16, 1024), data(rig, 2048, 1024))
    held_out = [data(rig, 512, 1024) for _ in range(8)]

    def score(out: torch.Tensor) -> float:
        spin(WORK_MS)
        return out.mean().item()

    def turn() -> float:
        for _ in range(10):
            step()
        model.eval()
        with torch.no_grad():
            found = sum(score(model(x)) for x in held_out)
        model.train()
        return found

    return model, turn


REASONS: dict[str, Program] = {
    "empties the cache": Program(empties_cache, says=("host", "")),
    "optimizer, one parameter at a time": Program(one_parameter_at_a_time, says=("host", "")),
    "averages weights one by one": Program(averages_weights, says=("host", "average")),
    "selects by a mask": Program(selects_by_mask, says=("host", "")),
    "generates between steps": Program(generates, "transformers", says=("host", "")),
    "histograms of weights": Program(draws_histograms, says=("host", "histograms")),
    "optimizer on the host": Program(steps_on_host, says=("host", "")),
    "augments in Python": Program(augments, says=("host cpu", "augment")),
    "logs in Python": Program(logs_each_step, says=("host", "write_metrics")),
    "a thread has Python's lock": Program(thread_holds_lock, says=("host", "tracks")),
    "decodes in workers": Program(decodes, says=("cpu", "Decoded")),
    "checkpointed activations": Program(recomputes, says=("compute", "")),
    "evaluates in Python": Program(evaluates_in_python, says=("host compute", "")),
}
