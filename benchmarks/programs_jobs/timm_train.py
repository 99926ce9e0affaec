"""timm's models, datasets, loaders, optimizers, schedulers and its saver of checkpoints, on small JPEGs of noise."""

import numpy
import PIL.Image
import timm
import told
import torch
from timm.data import create_dataset, create_loader
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import CheckpointSaver
from torch import nn

READ, EPOCHS = told.number("read_ms", 0) / 1000, int(told.number("epochs", 2))
TRAIN, TEST, BATCH = 640, 160, 16
torch.manual_seed(0)
torch.set_num_threads(1)
random = numpy.random.default_rng(0)
for split, count in (("train", TRAIN), ("val", TEST)):
    for i in range(count):
        path = told.FOLDER / split / f"c{i % 4}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(random.integers(0, 255, (96, 96, 3), dtype="uint8")).save(path)
opened = PIL.Image.open


def slow_open(*arguments, **options):
    told.injected_wait(READ)
    return opened(*arguments, **options)


PIL.Image.open = slow_open


def loader(split, training):
    return create_loader(
        create_dataset("", root=str(told.FOLDER), split=split, is_training=training),
        input_size=(3, 64, 64),
        batch_size=BATCH,
        is_training=training,
        num_workers=int(told.number("workers", 2)),
        use_prefetcher=False,
        persistent_workers=True,
    )


@torch.no_grad()
def validate(model, batches):
    model.eval()
    right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in batches)
    return {"top1": right / TEST}


model = timm.create_model("resnet10t", num_classes=4)
optimizer = create_optimizer_v2(model, opt="sgd", lr=0.01)
scheduler, _ = create_scheduler_v2(optimizer, num_epochs=EPOCHS)
(told.FOLDER / "saved").mkdir()
saver = CheckpointSaver(model, optimizer, checkpoint_dir=str(told.FOLDER / "saved"), max_history=2)
train, test = loader("train", True), loader("val", False)
with told.training() as facts:
    for epoch in range(EPOCHS):
        model.train()
        for images, labels in train:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step(epoch + 1)
        saver.save_checkpoint(epoch, validate(model, test)["top1"])
    facts.update(steps=TRAIN // BATCH * EPOCHS, evaluations=TEST // BATCH * EPOCHS, saves=EPOCHS)
    facts["weights"] = model.state_dict()
