"""fastai's Learner on a small table, with its savers and loggers."""

import sys
from pathlib import Path

import told
import torch
from fastai.basics import DataLoaders, Learner, accuracy, nn, set_seed
from fastai.callback.all import Callback, CSVLogger, SaveModelCallback

READ, SLOW = told.number("read_ms", 0) / 1000, told.number("callback_ms", 0) / 1000
EPOCHS = int(told.number("epochs", 4))
torch.set_num_threads(1)
set_seed(0)


class Rows:
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        told.injected_wait(READ)
        row = torch.randn(64, generator=torch.Generator().manual_seed(index))
        return row, (row.sum() > 0).long()


class Slow(Callback):
    def after_batch(self):
        if self.training:
            told.injected_wait(SLOW)


loaders = DataLoaders.from_dsets(Rows(2048), Rows(512), bs=32, num_workers=int(told.number("workers", 0)))
model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 2))
callbacks = [SaveModelCallback(every_epoch=True, with_opt=True), CSVLogger(fname="history.csv"), Slow()]
learn = Learner(
    loaders, model, loss_func=nn.CrossEntropyLoss(), metrics=accuracy, path=Path(sys.argv[1]), cbs=callbacks
)
with told.training() as facts:
    learn.fit_one_cycle(EPOCHS, 1e-3)
    facts.update(steps=64 * EPOCHS, evaluations=16 * EPOCHS, saves=EPOCHS, bytes=told.size(told.FOLDER / "models"))
    facts["weights"] = model.state_dict()
