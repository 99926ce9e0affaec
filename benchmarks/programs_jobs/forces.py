"""A force field: forces are the gradient of the energy by autograd.grad, in the training and in the validation."""

import told
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, EVERY, ATOMS = int(told.number("epochs", 10)), int(told.number("every", 1)), 16
torch.manual_seed(0)
torch.set_num_threads(1)


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.pair = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, places):
        distances = (places[:, :, None] - places[:, None]).pow(2).sum(-1).add(1e-3).sqrt()
        return self.pair(torch.exp(-(distances[..., None] - torch.linspace(0, 4, 16)).pow(2))).sum((1, 2, 3))


def forces(model, places, training):
    places = places.requires_grad_()
    energy = model(places)
    (slope,) = torch.autograd.grad(energy.sum(), places, create_graph=training)
    return energy, -slope


def validate(model, loader):
    model.eval()
    errors = [(forces(model, places, False)[1] - wanted).abs().mean().item() for places, wanted in loader]
    model.train()
    return sum(errors) / len(errors)


def loader(count):
    places = torch.randn(count, ATOMS, 3)
    return DataLoader(TensorDataset(places, -places), batch_size=16, shuffle=True)


model, train, test = Energy(), loader(640), loader(640)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
with told.training() as facts:
    for epoch in range(1, EPOCHS + 1):
        for places, wanted in train:
            optimizer.zero_grad()
            _, found = forces(model, places, True)
            (found - wanted).pow(2).mean().backward()
            optimizer.step()
        if epoch % EVERY == 0:
            print(epoch, validate(model, test))
    facts.update(steps=40 * EPOCHS, evaluations=40 * (EPOCHS // EVERY), weights=model.state_dict())
