"""nnU-Net's planning and training on ten volumes of noise, with short epochs."""

import json
import os

import numpy
import told
import torch

READ, ITERATIONS, EPOCHS, VALIDATION = told.number("read_ms", 0) / 1000, int(told.number("iterations", 25)), 3, 5
for name in ("raw", "preprocessed", "results"):
    os.environ[f"nnUNet_{name}"] = str(told.FOLDER / name)
os.environ |= {"nnUNet_n_proc_DA": told.GIVEN.get("workers", "2"), "nnUNet_compile": "f"}


def volumes(folder):
    import SimpleITK

    for kind in ("imagesTr", "labelsTr"):
        (folder / kind).mkdir(parents=True)
    random = numpy.random.default_rng(0)
    for i in range(10):
        image = random.standard_normal((12, 40, 40)).astype("float32")
        SimpleITK.WriteImage(SimpleITK.GetImageFromArray(image), folder / f"imagesTr/case_{i:03d}_0000.nii.gz")
        label = (image > 0).astype("uint8")
        SimpleITK.WriteImage(SimpleITK.GetImageFromArray(label), folder / f"labelsTr/case_{i:03d}.nii.gz")
    about = {"channel_names": {"0": "noise"}, "labels": {"background": 0, "more": 1}, "numTraining": 10}
    (folder / "dataset.json").write_text(json.dumps(about | {"file_ending": ".nii.gz"}))


def shorter(trainer, dataset):
    """Epochs of few iterations, no test after the last one, and cases that are read slowly."""
    init, load = trainer.__init__, dataset.load_case

    def short(self, plans, configuration, fold, dataset_json, device=None):
        init(self, plans, configuration, fold, dataset_json, torch.device("cpu"))
        self.num_iterations_per_epoch, self.num_epochs = ITERATIONS, EPOCHS
        self.num_val_iterations_per_epoch = VALIDATION

    def slow(self, *arguments, **options):
        told.injected_wait(READ)
        return load(self, *arguments, **options)

    trainer.__init__, dataset.load_case = short, slow
    trainer.perform_actual_validation = lambda *_, **__: None


def main():
    from nnunetv2.experiment_planning.plan_and_preprocess_api import (
        extract_fingerprints,
        plan_experiments,
        preprocess,
    )
    from nnunetv2.run.run_training import run_training
    from nnunetv2.training.dataloading.nnunet_dataset import nnUNetDatasetBlosc2
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    volumes(told.FOLDER / "raw" / "Dataset001_Noise")
    extract_fingerprints([1], num_processes=1)
    plans = plan_experiments([1])
    preprocess([1], plans, configurations=["2d"], num_processes=[1])
    shorter(nnUNetTrainer, nnUNetDatasetBlosc2)
    torch.set_num_threads(1)
    with told.training() as facts:
        run_training("1", "2d", "0", device=torch.device("cpu"))
        saved = list((told.FOLDER / "results").rglob("checkpoint_*.pth"))
        facts.update(steps=ITERATIONS * EPOCHS, evaluations=VALIDATION * EPOCHS)
        facts["files"] = [path.name for path in saved]


if __name__ == "__main__":
    main()
