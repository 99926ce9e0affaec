"""Lightning's Trainer with a validation, checkpoints and a CSV logger."""

import pytorch_lightning as lightning
import told
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, Dataset

READ, SAVE, EPOCHS = told.number("read_ms", 0) / 1000, told.number("save_ms", 0) / 1000, int(told.number("epochs", 6))
EVERY = int(told.number("every", 1))
torch.set_num_threads(1)
lightning.seed_everything(0)


class Pictures(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        told.injected_wait(READ)
        made = torch.Generator().manual_seed(index)
        return torch.randn(3, 32, 32, generator=made), index % 10


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten()
        )
        self.head = nn.LazyLinear(10)

    def _loss(self, batch):
        pictures, labels = batch
        return nn.functional.cross_entropy(self.head(self.model(pictures)), labels)

    def training_step(self, batch, _):
        loss = self._loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", self._loss(batch))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class SlowCheckpoint(ModelCheckpoint):
    def on_save_checkpoint(self, trainer, module, checkpoint):
        told.injected_wait(SAVE)


def loader(count):
    workers = int(told.number("workers", 0))
    return DataLoader(Pictures(count), batch_size=16, num_workers=workers, persistent_workers=bool(workers))


model = Classifier()
model.head(model.model(torch.zeros(1, 3, 32, 32)))
trainer = lightning.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    logger=CSVLogger(str(told.FOLDER)),
    callbacks=[SlowCheckpoint(str(told.FOLDER / "saved"), save_top_k=-1, every_n_epochs=EVERY)],
    enable_progress_bar=False,
    num_sanity_val_steps=0,
    check_val_every_n_epoch=EVERY,
    log_every_n_steps=10,
)
with told.training() as facts:
    trainer.fit(model, loader(1280), loader(640))
    facts.update(steps=80 * EPOCHS, evaluations=40 * (EPOCHS // EVERY), saves=EPOCHS // EVERY)
    facts.update(bytes=told.size(told.FOLDER / "saved"), weights=model.state_dict())
