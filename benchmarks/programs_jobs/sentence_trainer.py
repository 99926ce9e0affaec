"""SentenceTransformerTrainer with an evaluator, on random words."""

import random

import told
import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
    models,
)
from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator
from transformers import BertConfig, BertModel, BertTokenizerFast, TrainerCallback

torch.set_num_threads(1)
random.seed(0)
torch.manual_seed(0)
READ, LOG = told.number("read_ms", 0) / 1000, told.number("log_ms", 0) / 1000
SAMPLES, EVERY = int(told.number("samples", 1024)), int(told.number("eval_steps", 50))
WORDS = [f"w{i}" for i in range(500)]
folder = told.FOLDER / "bert"
folder.mkdir(exist_ok=True)
(folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
config = BertConfig(
    vocab_size=505,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=128,
    max_position_embeddings=64,
)
BertModel(config).save_pretrained(folder)
model = SentenceTransformer(
    modules=[models.Transformer(str(folder), max_seq_length=32), models.Pooling(64)], device="cpu"
)


def sentence():
    return " ".join(random.choices(WORDS, k=random.randint(5, 20)))


def slow_read(batch):
    told.injected_wait(READ * len(batch["anchor"]))
    return batch


class SlowLog(TrainerCallback):
    def on_log(self, *_, **__):
        told.injected_wait(LOG)


data = Dataset.from_dict({name: [sentence() for _ in range(SAMPLES)] for name in ("anchor", "positive")})
data.set_transform(slow_read)
evaluator = EmbeddingSimilarityEvaluator(
    *([sentence() for _ in range(256)] for _ in range(2)),
    [random.random() for _ in range(256)],
    name="dev",
    batch_size=8,
)
arguments = SentenceTransformerTrainingArguments(
    output_dir=str(told.FOLDER / "out"),
    num_train_epochs=1,
    per_device_train_batch_size=16,
    eval_strategy="steps",
    eval_steps=EVERY,
    save_strategy="steps",
    save_steps=50,
    logging_steps=int(told.number("log_steps", 5)),
    use_cpu=True,
    report_to=[],
    seed=0,
    disable_tqdm=True,
    dataloader_num_workers=int(told.number("workers", 0)),
)
trainer = SentenceTransformerTrainer(
    model=model,
    args=arguments,
    train_dataset=data,
    evaluator=evaluator,
    loss=losses.MultipleNegativesRankingLoss(model),
    callbacks=[SlowLog()],
)
with told.training() as facts:
    trainer.train()
    saved = list((told.FOLDER / "out").glob("checkpoint-*"))
    facts.update(steps=trainer.state.global_step, saves=len(saved), bytes=sum(map(told.size, saved)))
    facts["weights"] = model.state_dict()
