"""Ten steps, as examples have them. With `fail`, the first batch fails."""

import sys

import told
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(torch.randn(160, 32 - ("fail" in sys.argv)), torch.zeros(160).long()), batch_size=16)
with told.training() as facts:
    for rows, labels in loader:
        loss = nn.functional.cross_entropy(model(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    facts.update(steps=10, weights=model.state_dict())
