"""pytorch-tabnet's TabNetClassifier, as its documentation uses it: two sets are evaluated after each epoch."""

import numpy as np
import told
import torch
from pytorch_tabnet.callbacks import Callback
from pytorch_tabnet.tab_model import TabNetClassifier

EPOCHS, WAIT = int(told.number("epochs", 8)), told.number("callback_ms", 0) / 1000
torch.set_num_threads(1)
made = np.random.default_rng(0)
inputs = made.standard_normal((5120, 32)).astype(np.float32)
classes = (inputs[:, :4].sum(1) > 0).astype(np.int64)


class Slow(Callback):
    def on_batch_end(self, batch, logs=None):
        told.injected_wait(WAIT)


model = TabNetClassifier(n_d=16, n_a=16, seed=0, verbose=0, device_name="cpu")
with told.training() as facts:
    model.fit(
        inputs,
        classes,
        eval_set=[(inputs[:2560], classes[:2560]), (inputs[2560:], classes[2560:])],
        max_epochs=EPOCHS,
        patience=EPOCHS,
        batch_size=128,
        virtual_batch_size=64,
        num_workers=0,
        compute_importance=False,
        callbacks=[Slow()],
    )
    facts.update(steps=40 * EPOCHS, evaluations=40 * EPOCHS, samples=5120 * EPOCHS, weights=model.network.state_dict())
