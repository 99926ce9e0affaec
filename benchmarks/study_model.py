"""A language model with GPT-2's shape (Radford et al. 2019): learned positions, pre-norm blocks, tied embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TOKENS = 256
"""The vocabulary: bytes, from which GPT-2's own vocabulary is built."""
CONTEXT, WIDTH, LAYERS, HEADS = 64, 128, 4, 4
_SPREAD = 0.02
"""The standard deviation of the first weights, as in GPT-2."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.queries_keys_values, self.mixed = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(approximate="tanh"), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = self.queries_keys_values(self.before_attention(x)).split(WIDTH, dim=-1)
        q, k, v = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mixed(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.before_mlp(x))


class LanguageModel(nn.Module):
    """Its weights are random. It has 0.83 million of them: 3.4 MB of gradients, and checkpoints of 10 MB with Adam."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(TOKENS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.last = nn.LayerNorm(WIDTH)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=_SPREAD)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens of shape (batch, length). Returns logits of shape (batch, length, TOKENS)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.last(self.blocks(self.tokens(tokens) + self.positions(places)))
        return F.linear(x, self.tokens.weight)


def loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """The mean cross-entropy of each next token, in nats. Tokens have the shape (batch, CONTEXT + 1)."""
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
