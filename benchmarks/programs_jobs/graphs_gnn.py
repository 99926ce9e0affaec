"""Classification of graphs with torch_geometric, as its examples do it."""

import itertools

import told
import torch
from torch import nn
from torch_geometric.data import Data, Dataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, global_add_pool

READ, EPOCHS, WIDTH = told.number("read_ms", 0) / 1000, int(told.number("epochs", 4)), 64
torch.manual_seed(0)
torch.set_num_threads(1)


class Graphs(Dataset):
    def __init__(self, count):
        super().__init__()
        self.count = count

    def len(self):
        return self.count

    def get(self, idx):
        told.injected_wait(READ)
        made = torch.Generator().manual_seed(idx)
        nodes = 20 + idx % 20
        edges = torch.randint(nodes, (2, 4 * nodes), generator=made)
        return Data(x=torch.randn(nodes, 16, generator=made), edge_index=edges, y=torch.tensor([idx % 2]))


class GIN(nn.Module):
    def __init__(self):
        super().__init__()
        widths = (16, WIDTH, WIDTH, WIDTH)
        self.layers = nn.ModuleList(
            GINConv(nn.Sequential(nn.Linear(a, WIDTH), nn.ReLU(), nn.Linear(WIDTH, b)))
            for a, b in itertools.pairwise(widths)
        )
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, graphs):
        hidden = graphs.x
        for layer in self.layers:
            hidden = layer(hidden, graphs.edge_index).relu()
        return self.head(global_add_pool(hidden, graphs.batch))


@torch.no_grad()
def test(model, loader):
    model.eval()
    return sum(int((model(graphs).argmax(-1) == graphs.y).sum()) for graphs in loader) / len(loader.dataset)


def loader(count):
    return DataLoader(Graphs(count), batch_size=32, shuffle=True, num_workers=int(told.number("workers", 0)))


model, train, held_out = GIN(), loader(1280), loader(320)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
with told.training() as facts:
    for _ in range(EPOCHS):
        model.train()
        for graphs in train:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(graphs), graphs.y).backward()
            optimizer.step()
        print(test(model, train), test(model, held_out))
    facts.update(steps=40 * EPOCHS, evaluations=50 * EPOCHS, samples=1280 * EPOCHS, weights=model.state_dict())
