"""skorch's NeuralNetClassifier, as its documentation uses it: each epoch ends with a score and a checkpoint."""

import numpy as np
import told
import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback, Checkpoint, EpochScoring
from torch import nn

EPOCHS, READ, SCORE = int(told.number("epochs", 10)), told.number("read_ms", 0) / 1000, told.number("score_ms", 0)
torch.manual_seed(0)
torch.set_num_threads(1)
made = np.random.default_rng(0)
inputs = made.standard_normal((6400, 128)).astype(np.float32)
classes = (inputs[:, :8].sum(1) > 0).astype(np.int64)


class Samples(torch.utils.data.Dataset):
    def __init__(self, X, y=None):
        self.inputs, self.classes = X, classes if y is None else y

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        told.injected_wait(READ)
        return self.inputs[index], self.classes[index]


class Slow(Callback):
    def on_epoch_end(self, net, **_):
        told.injected_wait(SCORE / 1000)


net = NeuralNetClassifier(
    nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2), nn.Softmax(-1)),
    optimizer=torch.optim.Adam,
    lr=1e-3,
    max_epochs=EPOCHS,
    batch_size=64,
    dataset=Samples,
    iterator_train__num_workers=int(told.number("workers", 0)),
    callbacks=[
        EpochScoring("roc_auc", lower_is_better=False),
        Checkpoint(monitor=None, dirname=str(told.FOLDER / "saved")),
        Slow(),
    ],
)
with told.training() as facts:
    net.fit(inputs, classes)
    facts.update(steps=80 * EPOCHS, evaluations=20 * EPOCHS, saves=EPOCHS, weights=net.module_.state_dict())
