"""TRL's own command line (`trl.scripts`) on random words: `trl_program.py FOLDER grpo|dpo|sft`."""

import json
import random
import runpy
import sys
import time

import told
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BURN, WAIT, STEPS = told.number("burn_ms", 0) / 1000, told.number("wait_ms", 0) / 1000, int(told.number("steps", 20))
KIND = sys.argv[2]
random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)
WORDS = ["".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(2, 8))) for _ in range(2000)]


def words(least, most):
    return " ".join(random.choices(WORDS, k=random.randint(least, most)))


def length_reward(completions, **_):
    told.injected_wait(WAIT)
    end = time.perf_counter() + BURN
    while time.perf_counter() < end:
        sum(i * i for i in range(1000))
    return [float(len(one) % 17) for one in completions]


SAMPLES = {
    "sft": lambda: {"text": words(10, 60)},
    "grpo": lambda: {"prompt": words(5, 12)},
    "dpo": lambda: {"prompt": words(5, 12), "chosen": " " + words(10, 30), "rejected": " " + words(10, 30)},
}[KIND]
data = told.FOLDER / "data"
data.mkdir()
for split, count in (("train", 3000), ("test", 64)):
    (data / f"{split}.jsonl").write_text("".join(json.dumps(SAMPLES()) + "\n" for _ in range(count)))
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.train_from_iterator(
    (words(10, 60) for _ in range(2000)),
    trainers.BpeTrainer(vocab_size=2000, special_tokens=["<s>", "</s>", "<pad>"], show_progress=False),
)
fast = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer,
    bos_token="<s>",
    eos_token="</s>",
    unk_token="<s>",
    pad_token="<pad>",
    model_max_length=512,
)
fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
model = told.FOLDER / "model"
fast.save_pretrained(model)
LlamaForCausalLM(
    LlamaConfig(
        vocab_size=len(fast),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
).save_pretrained(model)
out = told.FOLDER / "out"
options = {
    "sft": "--packing --max_length 128 --per_device_train_batch_size 8 --gradient_accumulation_steps 2 "
    f"--eval_strategy steps --eval_steps {told.GIVEN.get('eval_steps', 10)}",
    "grpo": "--reward_funcs trl_program.length_reward --beta 0.04 --num_generations 4 --per_device_train_batch_size 4 "
    "--gradient_accumulation_steps 2 --max_completion_length 64",
    "dpo": "--per_device_train_batch_size 4 --gradient_accumulation_steps 2 --max_length 128"
    + (" --precompute_ref_log_probs" if "precompute" in told.GIVEN else ""),
}[KIND]
common = (
    f"--model_name_or_path {model} --dataset_name {data} --output_dir {out} --report_to none --use_cpu --bf16 false "
    f"--logging_steps 2 --seed 1 --max_steps {STEPS} --save_steps 20"
)
sys.modules["trl_program"] = sys.modules["__main__"]  # the reward is found by its name
sys.argv = [f"trl.scripts.{KIND}", *common.split(), *options.split()]
with told.training() as facts:
    runpy.run_module(f"trl.scripts.{KIND}", run_name="__main__")
    facts.update(steps=STEPS, bytes=told.size(out))
    facts["saves"] = len(list(out.glob("checkpoint-*"))) + 1  # and the model at the end
    facts["weights"] = LlamaForCausalLM.from_pretrained(out).state_dict()
