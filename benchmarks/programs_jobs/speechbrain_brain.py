"""SpeechBrain's Brain with a checkpointer, on spectra of noise."""

import speechbrain
import told
import torch
from speechbrain.utils import checkpoints
from torch import nn
from torch.utils.data import Dataset

READ, SAVE, EPOCHS = told.number("read_ms", 0) / 1000, told.number("save_ms", 0) / 1000, int(told.number("epochs", 4))
torch.manual_seed(0)
torch.set_num_threads(1)


class Speech(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        told.injected_wait(READ)
        return torch.randn(16000, generator=torch.Generator().manual_seed(index))


class Enhance(speechbrain.Brain):
    def compute_forward(self, batch, stage):
        spectra = torch.stft(batch, 512, 160, 400, torch.hann_window(400), return_complex=True).abs().transpose(1, 2)
        return self.modules.model(torch.log1p(spectra)), spectra

    def compute_objectives(self, found, batch, stage):
        masks, spectra = found
        return nn.functional.mse_loss(masks * spectra, 0.5 * spectra)

    def on_stage_end(self, stage, loss, epoch=None):
        if stage == speechbrain.Stage.VALID:
            self.checkpointer.save_and_keep_only(meta={"loss": loss}, min_keys=["loss"])


written = checkpoints.torch_save


def slow_save(*arguments, **options):
    told.injected_wait(SAVE)
    return written(*arguments, **options)


checkpoints.DEFAULT_SAVE_HOOKS = {
    kind: (slow_save if hook is written else hook) for kind, hook in checkpoints.DEFAULT_SAVE_HOOKS.items()
}
model = nn.Sequential(nn.Linear(257, 256), nn.ReLU(), nn.Linear(256, 257), nn.Sigmoid())
epochs = speechbrain.utils.epoch_loop.EpochCounter(EPOCHS)
saver = checkpoints.Checkpointer(told.FOLDER / "saved", {"model": model, "counter": epochs})
brain = Enhance(
    {"model": model},
    lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    run_opts={"device": "cpu", "noprogressbar": True},
    checkpointer=saver,
)
loading = {"batch_size": 8, "num_workers": int(told.number("workers", 0))}
with told.training() as facts:
    brain.fit(epochs, Speech(240), Speech(80), train_loader_kwargs=loading, valid_loader_kwargs=loading)
    facts.update(steps=30 * EPOCHS, evaluations=10 * EPOCHS, saves=EPOCHS, weights=model.state_dict())
