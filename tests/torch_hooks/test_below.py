"""Below which function the training thread is: names of functions, classes and modules decide."""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import os
import socket
import struct
import sys
import types
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
import torch

from whyidle.ledger.below import BLOCKERS, STATES
from whyidle.ledger.layout import LEDGER_BYTES, WORD_AT
from whyidle.torch_hooks.below import (
    Below,
    _classify,
    averages,
    blocker_of,
    collects,
    copies,
    infers,
    is_apart,
    makes_tensors,
    uses_torch,
)
from whyidle.torch_hooks.thread_state import UNREADABLE
from whyidle.torch_hooks.user_code import line_of


class Machine:
    def __init__(self) -> None:
        self.words = memoryview(bytearray(LEDGER_BYTES)).cast("q")
        self.strings: dict[str, str] = {}

    def write_string(self, name: str, text: str) -> None:
        self.strings[name] = text


LIBRARIES = ("numpy", "wandb", "gymnasium", "datasets", "transformers")


def stack(*names: str) -> types.FrameType:
    """A stack of functions, outermost first, each as `MODULE:CLASS.FUNCTION` or `MODULE:FUNCTION`."""
    call: Any = sys._getframe
    for name in reversed(names):
        module, _, path = name.partition(":")
        owner, _, function = path.rpartition(".")
        source = f"def {function}():\n    return call()\n"
        if owner:
            source = f"class {owner}:\n" + "".join(f"    {line}\n" for line in source.splitlines())
        space: dict[str, Any] = {"__name__": module, "call": call}
        folder = "/usr/lib/python3/site-packages" if module.partition(".")[0] in LIBRARIES else "/home"
        exec(compile(source, f"{folder}/{module}.py", "exec"), space)
        call = vars(space[owner])[function] if owner else space[function]
    return call()


def found(below: Below, *names: str) -> str:
    function = below.find(stack(*names))
    return function[1].co_name if function is not None else ""


def below() -> Below:
    return Below(cast(Any, Machine()))


@pytest.mark.parametrize(
    ("names", "function"),
    [
        (("train:main", "train:get_batch", "numpy:memmap"), "get_batch"),
        (("train:main", "rec:Pipeline._next_batch", "rec:sleep"), "_next_batch"),
        (("train:main", "mine:Loop.__next__"), "__next__"),
        (("train:main", "train:log_metrics", "wandb.sdk.wandb_run:Run.log"), "log_metrics"),
        (("train:main", "train:on_log", "train:get_batch"), "get_batch"),
        (("train:main", "torchvision.transforms.v2:Resize.forward", "torch.nn.modules.module:_call_impl"), ""),
        (("train:main", "torch.nn.modules.module:_call_impl", "model:Net.forward"), ""),
        (("train:main", "train:load_batch"), "load_batch"),
        (("train:main", "train:get_next_batch"), "get_next_batch"),
        (("train:main", "train:read_parquet_shard", "numpy:load"), "read_parquet_shard"),
        (("train:main", "train:getBatch"), "getBatch"),
        (("train:main", "gnn:sample_neighbors"), "sample_neighbors"),
        (("train:main", "gnn:sample_random_walks", "gnn:choice"), "sample_random_walks"),
        (("train:main", "gnn:subgraph_sampling"), "subgraph_sampling"),
        (("train:main", "text:sample_block"), ""),
        (("train:main", "text:sample_blocks"), ""),
        (("train:main", "text:sample_negatives"), ""),
        (("train:main", "train:get_next_token"), ""),
        (("train:main", "train:log_loss"), ""),
        (("train:main", "train:log_importance_weights"), ""),
        (("train:main", "train:draw_samples"), ""),
        (("train:main", "train:Run.log", "train:post"), "log"),
        (("train:main", "train:log_prob"), ""),
        (("train:main", "train:save_weights", "numpy:savez"), "save_weights"),
        (("train:main", "train:save_all", "train:save_weights", "numpy:savez", "numpy:_savez"), "save_weights"),
        (("train:main", "train:export", "numpy:savez", "numpy:_savez"), "_savez"),
        (("train:main", "train:save_weights", "wandb:Run.log"), "log"),
        (("train:main", "train:get_batch", "datasets:Dataset.__getitem__"), "get_batch"),
        (("train:main", "train:env_step", "gymnasium:VectorEnv.step"), "env_step"),
        (("train:main", "train:log_metrics", "train:evaluate", "wandb:Run.log"), "log"),
        (("train:main", "train:Saver.save"), "save"),
        (("train:main", "train:save_model_state"), "save_model_state"),
        (("train:main", "train:write_model"), "write_model"),
        (("train:main", "train:saved_tensors"), ""),
        (("train:main", "torch.utils.checkpoint:save_on_cpu"), ""),
        (("train:main", "rl:BaseCallback.on_step", "rl:EvalCallback._on_step", "rl:play"), ""),
        (("train:main", "rl:BaseCallback.on_step", "rl:evaluate_policy", "env:Env.step"), "evaluate_policy"),
        (("train:main", "rl:BaseCallback.on_step", "mine:SlowCallback._on_step", "mine:post"), "_on_step"),
        (
            ("train:main", "transformers:CallbackHandler.call_event", "train:Reporter.on_step_end", "numpy:f"),
            "on_step_end",
        ),
        (("train:main", "transformers:CallbackHandler.call_event", "transformers:Flow.on_step_end"), "call_event"),
        (("train:main", "train:validate", "train:get_batch"), "get_batch"),
        (("train:main", "train:step"), ""),
        (("train:main", "rl:GridEnv.step", "rl:spin"), "step"),
        (("train:main", "rl:rollout", "torch.nn.modules.module:_call_impl"), ""),
        (("train:main", "rl:rollout", "rl:GridEnv.step"), "step"),
        (("train:main", "rl:GridEnv.step", "torch.autograd:backward"), ""),
        (("train:main", "rl:evaluate", "rl:GridEnv.step"), "evaluate"),
        (("train:main", "rl:evaluate", "torch.nn.modules.module:_call_impl"), ""),
        (("train:main", "rl:get_batch", "rl:GridEnv.step"), "step"),
        ((), ""),
    ],
)
def test_the_innermost_function_of_a_known_name_counts(names: tuple[str, ...], function: str) -> None:
    assert found(below(), *names) == function


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("save_png", "logging"),
        ("logMetrics", "logging"),
        ("saveModel", "saving"),
        ("plot_confusion_figure", "logging"),
        ("_save_val_samples", "logging"),
        ("write_metrics", "logging"),
        ("save_model", "saving"),
        ("save_sample_weights", "saving"),
        ("save_checkpoint_and_metrics", "saving"),
        ("save_running_stats", "saving"),
        ("plot_loss", "logging"),
        ("log_images", "logging"),
        ("maybe_log_grad_norm", "logging"),
        ("visualize_samples", "logging"),
        ("print_metrics", "logging"),
        ("log_to_file", "logging"),
        ("snapshot", "saving"),
        ("persist_weights", "saving"),
    ],
)
def test_what_people_look_at_is_logged_and_what_is_restored_is_saved(name: str, kind: str) -> None:
    function = below().find(stack("train:main", f"train:{name}"))
    assert function is not None
    assert function[0] == kind


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("__iter__", True),
        ("batches", True),
        ("gen", True),
        ("train_gen", True),
        ("generator", True),
        ("_gen", True),
        ("generate", False),
        ("regen", False),
        ("traj_segment_generator", False),
        ("token_generator", False),
        ("named_modules", False),
    ],
)
def test_a_generator_says_by_its_name_whether_it_makes_batches(name: str, known: bool) -> None:
    for module, says in (("train", known), ("torch.utils.checkpoint", False)):
        space: dict[str, Any] = {"__name__": module, "look": sys._getframe}
        exec(f"def {name}(self):\n    yield look()\n", space)
        assert (below().find(next(space[name](None))) is not None) == says


@pytest.mark.skipif(sys.version_info < (3, 11), reason="without names of classes")
@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("mine:Dataset.__getitem__", True),
        ("mine:TokenStream.__iter__", True),
        ("mine:Config.__getitem__", False),
        ("mine:PrintCallback.on_step", True),
        ("mine:EvalCallback.on_step", False),
    ],
)
def test_a_class_says_what_its_methods_are_for(name: str, known: bool) -> None:
    assert bool(found(below(), "train:main", name, "train:other")) == known


def test_a_dataset_of_torch_makes_samples_whatever_its_name() -> None:
    from torch.utils.data import Dataset, IterableDataset

    class Crops(Dataset[Any]):
        def __getitem__(self, index: int) -> Any:
            return sys._getframe()

    class Lines(IterableDataset[Any]):
        def __iter__(self) -> Any:
            yield sys._getframe()

    class Table:  # in a function whose name has "dataset"
        def __getitem__(self, index: int) -> Any:
            return sys._getframe()

    frames = Crops()[0], next(iter(Lines())), Table()[0]
    assert [_classify(frame.f_code, "mine") for frame in frames] == ["data", "data", ""]


def test_a_trainer_that_is_an_iterator_makes_no_batches() -> None:
    one, trainer = below(), stack("train:main", "mine:Trainer.__next__", "train:sleeps")
    function = one.find(trainer)
    assert function is not None
    code = function[1]
    one.count(function, "blocked", b"35 0x0 0x0 0x0 0x0 0x0 0x0 0x0 0x0", 1)
    machine = cast(Machine, one._machine)
    at = WORD_AT["data_looks"][0]
    assert machine.words[at] == 1
    inside = types.SimpleNamespace(f_code=code, f_globals=trainer.f_globals, f_back=None)
    model = types.SimpleNamespace(
        f_code=stack("torch.nn.modules.module:_call_impl").f_code,
        f_globals={"__name__": "torch.nn.modules.module"},
        f_back=inside,
    )
    assert one.find(cast(Any, model)) is None
    assert one.find(trainer) is not None  # a single look says little
    one.find(cast(Any, model))
    assert one.find(trainer) is None
    read = types.SimpleNamespace(
        f_code=stack("datasets:Dataset.__getitem__").f_code, f_globals={"__name__": "datasets"}, f_back=inside
    )
    assert one.find(cast(Any, read)) == ("data", read.f_code)


@pytest.mark.parametrize(
    ("names", "updates"),
    [
        (("train:main", "torch.optim.adamw:AdamW.step", "torch.optim.adamw:_single_tensor_adamw"), True),
        (("train:main", "torch.optim.optimizer:wrapper", "mine:Muon.step"), True),
        (("train:main", "torch.autograd:backward", "train:hook", "torch.optim.sgd:SGD.step"), True),
        (("train:main", "torch.optim.lbfgs:LBFGS.step", "train:closure", "torch.nn.modules.module:_call_impl"), False),
        (("train:main", "torch.nn.utils.clip_grad:clip_grad_norm_"), False),
        (("train:main", "torch.optim.swa_utils:AveragedModel.update_parameters"), False),
    ],
)
def test_knows_what_an_optimizer_launches(names: tuple[str, ...], updates: bool) -> None:
    looks = below()
    looks.find(stack(*names))
    assert looks.in_optimizer is updates


@pytest.mark.parametrize(
    ("names", "works"),
    [
        (("torch.optim.optimizer:wrapper", "torch.optim.adamw:AdamW.step", "train:closure"), False),
        (("torch.optim.adamw:AdamW.step", "lightning:Closure.__call__", "train:training_step"), False),
        (("torch.optim.lbfgs:LBFGS._directional_evaluate", "torch.utils._contextlib:with_it", "train:closure"), False),
        (("torch.optim.adamw:AdamW.step", "train:closure", "torch.nn.modules.module:_call_impl", "train:act"), True),
        (("torch.optim.optimizer:wrapper", "mine:Muon.step"), True),
        (("torch.optim.optimizer:wrapper", "torch.optim.adamw:AdamW.step", "whyidle.torch_hooks:stepped"), True),
    ],
)
def test_the_closure_of_an_optimizer_is_the_loop_s_own_code(names: tuple[str, ...], works: bool) -> None:
    looks = below()
    looks.find(stack("train:main", *names))
    assert (looks.at_work, looks.in_model) == (works, works)


def test_methods_that_work_in_place_are_of_tensors() -> None:
    """A function that gets its tensors from elsewhere may not name torch."""

    def average(x: Any, y: Any) -> list[bool]:
        found = [x.mul_(uses_torch(sys._getframe()))]
        found.append(y.write_(uses_torch(sys._getframe())))
        return found

    assert average(types.SimpleNamespace(mul_=bool), types.SimpleNamespace(write_=bool)) == [True, False]


def test_knows_lines_that_make_tensors_of_lists() -> None:
    found = [torch.tensor([makes_tensors(sys._getframe())])]
    found.append(torch.as_tensor([makes_tensors(sys._getframe())]))
    found.append(torch.ones(1) * makes_tensors(sys._getframe()))
    found.append(torch.tensor([makes_tensors(sys._getframe())]) * torch.ones(1))
    assert [bool(one) for one in found] == [True, True, False, False]


def test_a_line_that_names_nothing_makes_no_tensor() -> None:
    space: dict[str, Any] = {}
    exec("def merge(look):\n    return look()", space)
    assert not makes_tensors(space["merge"](sys._getframe))


def test_knows_lines_that_copy_tensors() -> None:
    def fetch(batch: Any, to: Any) -> list[bool]:
        found = [batch.to(copies(sys._getframe()))]
        found.append(batch.cuda(copies(sys._getframe())))
        found.append(to(copies(sys._getframe())))
        return found

    same = types.SimpleNamespace(to=bool, cuda=bool)
    assert fetch(same, bool) == [True, True, False]


def test_counts_by_state_and_by_what_blocks() -> None:
    one = below()
    code = one.find(stack("train:get_batch"))
    assert code is not None
    for ns, state in enumerate(STATES, 5):
        one.count(code, state, UNREADABLE if state == "blocked" else b"", ns)
    machine = cast(Machine, one._machine)
    at = WORD_AT["data_looks"][0]
    assert machine.words[at : at + len(STATES)].tolist() == [1, 1, 1]
    stand = WORD_AT["data_looked_ns"][0]
    assert machine.words[stand : stand + len(STATES)].tolist() == [5, 6, 7]
    assert machine.strings["data_below"] == "train.py:1 get_batch"
    on = WORD_AT["data_blocked_on"][0]
    assert sum(machine.words[on : on + len(BLOCKERS)]) == 1
    one.count(code, "blocked", b"", 5)  # it waits for a thread that computes
    assert (machine.words[at], sum(machine.words[on : on + len(BLOCKERS)])) == (2, 1)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls")
def test_says_what_a_thread_is_blocked_on(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    pipes = *os.pipe(), os.open(tmp_path / "pipe", os.O_RDWR)
    rest = "0x0 0x0 0x0 0x0 0x0 0x7f 0x7f"
    try:
        assert {blocker_of(f"0 {one:#x} {rest} 0x1".encode()) for one in pipes} == {"a pipe"}
    finally:
        for one in pipes:
            os.close(one)
    with open(__file__) as file:
        assert blocker_of(f"17 {file.fileno():#x} {rest} 0x1".encode()) == "files"
    for number, what in ((230, "a sleep"), (202, "a queue or a lock"), (61, "a subprocess"), (45, "a socket")):
        assert blocker_of(f"{number} 0xffff {rest} 0x1".encode()) == what
    assert blocker_of(b"-1 0x7f 0x7f") == "files"
    assert blocker_of(b"running") == blocker_of(b"") == "other calls"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls")
@pytest.mark.parametrize(("pair", "what"), [(socket.socketpair, "a socket"), (os.pipe, "a pipe")])
def test_says_what_a_thread_polls(pair: Callable[[], Any], what: str) -> None:
    """A socket with a timeout is polled first: requests of urllib do so."""
    ends = pair()
    number = ends[0] if isinstance(ends[0], int) else ends[0].fileno()
    polled = ctypes.create_string_buffer(struct.pack("ihh", number, 1, 0))
    assert blocker_of(f"7 {ctypes.addressof(polled):#x} 0x1 0x0 0x0 0x0 0x0 0x7f 0x7f".encode()) == what
    for end in ends:
        os.close(end) if isinstance(end, int) else end.close()


@pytest.mark.parametrize(
    ("names", "acts"),
    [
        (("train:main", "rl:rollout", "torch.nn.modules.module:_call_impl"), True),
        (("train:main", "rl:rollout", "torch.nn.modules.module:_call_impl", "torch.autograd.function:apply"), True),
        (("train:main", "rl:rollout", "torch.optim.sgd:sgd"), False),
        (("train:main", "rl:Coach.executeEpisode", "torch.nn.modules.module:_call_impl"), True),
        (("train:main", "rl:evaluate", "rl:collect_episodes"), False),
        (("torch.optim.sgd:step", "train:training_step", "rl:GridEnv.step"), True),
    ],
)
def test_experience_is_collected_where_the_model_works_but_does_not_learn(names: tuple[str, ...], acts: bool) -> None:
    looks = below()
    looks.find(stack(*names))
    assert looks.acts is acts


@pytest.mark.parametrize(
    ("work", "function"),
    [
        ("torch.autograd:backward", "step"),
        ("torch.optim.sgd:SGD.step", "step"),
        ("torch.autograd:grad", "evaluate"),
        ("torch.nn.modules.module:_call_impl", "evaluate"),
    ],
)
def test_a_function_with_the_name_of_an_evaluation_may_train(work: str, function: str) -> None:
    looks, names = below(), ("train:main", "rl:evaluate", "rl:GridEnv.step")
    before = looks.find(stack(*names))
    assert before is not None
    looks.find(stack("train:main", "rl:evaluate", work))
    assert found(looks, *names) == function
    looks.count(before, "work", b"", 1)  # it had been seen before
    words, at = cast(Machine, looks._machine).words, WORD_AT["testing_looks"][0]
    assert sum(words[at : at + len(STATES)]) == (function == "evaluate")


@pytest.mark.parametrize(
    ("source", "collecting"),
    [
        ("def main():\n    env.reset()\n    env.step(call())", True),
        ("def main():\n    envs[0].reset()\n    envs[len(envs) - 1].step(call())", True),
        ("def main():\n    print(os.environ)\n    env.reset()\n    env.step(call())", True),
        ("def main():\n    return env_step(call())", True),
        ("def rollout():\n    return call()", True),
        ("def main():\n    rewards = call()\n    return rewards", True),
        ("def main():\n    rewards_chosen, rewards_rejected = call(), 0", False),  # they are what it learns
        ("def main():\n    return rollout(call())", True),
        ("def main():\n    rewards = evaluate(call())", False),
        ("def evaluate():\n    env.reset()\n    env.step(call())", False),
        ("def main():\n    env = call()\n    optimizer.step()", False),
        ("def main():\n    env.reset(env.environ)\n    optimizer.step(call())", False),
        ("def main():\n    metrics.reset()\n    optimizer.step(call())", False),
    ],
)
def test_names_tell_that_code_collects_experience(source: str, collecting: bool) -> None:
    frames: list[types.FrameType] = []

    class Anything:
        def __getattr__(self, _: str) -> Any:
            return lambda *_: None

    def call() -> None:
        frames.append(sys._getframe(1))

    space: dict[str, Any] = {
        "os": Anything(),
        "envs": [Anything()],
        "env": Anything(),
        "optimizer": Anything(),
        "metrics": Anything(),
        "call": call,
    }
    space["env_step"] = space["rollout"] = space["evaluate"] = lambda _: None
    exec(source, space)
    space[source[4 : source.index("(")]]()
    assert collects(frames[0], inferred=True) is collecting
    if "rewards" in source:  # of which the code may only be computing a mean
        assert not collects(frames[0])


@pytest.mark.parametrize(
    ("line", "evaluates"),
    [
        ("call(), cfg.ema_val", False),
        ("call(best_val)", False),
        ("call(), cfg.run_eval()", True),
        ("call(), run_eval()", True),
        ("call(), cfg.run_eval(*[])", True),
        ("call(), cfg.run_eval(**{})", True),
    ],
)
@pytest.mark.parametrize("head", ["def main():\n    ", ""], ids=["in a function", "in a module"])
def test_only_the_names_of_what_a_line_calls_tell_that_it_infers(line: str, evaluates: bool, head: str) -> None:
    found: list[bool] = []
    space: dict[str, Any] = {
        "cfg": types.SimpleNamespace(ema_val=1.0, run_eval=lambda: None),
        "best_val": 1.0,
        "run_eval": lambda: None,
        "call": lambda *_: found.append(infers(sys._getframe(1))),
    }
    exec(head + line, space)
    if head:
        space["main"]()
    assert found == [evaluates or (sys.version_info < (3, 11) and "best_val" in line)]


class Proxy:
    """Runs code when somebody asks for an attribute."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(name)


PROXY = Proxy()


def of_torch() -> types.FrameType:
    torch.is_grad_enabled()
    return sys._getframe()


def of_its_own() -> types.FrameType:
    assert PROXY is not None
    return sys._getframe()


@pytest.mark.parametrize(("frame", "uses"), [(of_torch(), True), (of_its_own(), False)], ids=["torch", "nothing of it"])
def test_knows_code_that_uses_torch_and_asks_no_object_of_the_training(frame: types.FrameType, uses: bool) -> None:
    assert uses_torch(frame) == uses


@pytest.mark.parametrize(
    ("core", "modules", "apart"),
    [
        ("json", {}, True),
        ("tables.core", {"tables": "__init__.py", "tables.core": "core.py"}, True),
        ("boxes.core", {"boxes": "__init__.py", "boxes.core": "core.py", "boxes.ops": "ops.py torch"}, False),
        ("train", {"train": ""}, False),  # the training's own code may have an extension
        ("voxels", {"voxels": "voxels.so"}, False),
    ],
)
def test_knows_packages_that_work_without_torch(
    core: str, modules: dict[str, str], apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in modules.items():
        file, _, uses = text.partition(" ")
        module = types.ModuleType(name)
        module.__file__ = f"/usr/lib/python3/site-packages/{file}" if file else "/home/train.py"
        vars(module).update({"torch": torch} if uses else {})
        monkeypatch.setitem(sys.modules, name, module)
    space: dict[str, Any] = {"__name__": core}
    exec("def merge(look):\n    return look()", space)
    assert is_apart(space["merge"](sys._getframe)) == apart


@pytest.mark.parametrize(
    ("line", "uses"),
    [
        ("torch.get_num_threads(), look()", True),
        ("look(), torch.get_num_threads(), zlib.crc32(b'')", True),
        ("zlib.compress(b''), look()", False),
        ("crc32(b''), look()", False),
        ("(zlib.compress(b''),\n        look())", True),  # that line does not say
        ("look()", True),
        ("PROXY, look()", True),
        ("math.sqrt(2), look()", True),
        ("json.dumps(1), json.JSONDecoder, look()", True),  # what runs there has frames
        ("zlib.MAX_WBITS, look()", True),
        ("hasher.update(data), look()", False),  # a tensor has no such method
        ("self.log.hasher.update(data), look()", False),
        ("hasher.update(x.numpy()), look()", True),
        ("hasher.update(data * 2), look()", True),
        ("hasher.update(act(data)), look()", True),  # a variable may be a function of torch
        ("x.clone(), look()", True),
    ],
)
def test_the_line_says_whether_code_of_a_function_with_torch_uses_it(line: str, uses: bool) -> None:
    found: list[bool] = []
    space: dict[str, Any] = {"torch": torch, "zlib": zlib, "crc32": zlib.crc32, "math": math, "json": json}
    space |= {"PROXY": PROXY, "look": lambda: found.append(uses_torch(sys._getframe(1)))}
    space["logs"] = types.SimpleNamespace(log=types.SimpleNamespace(hasher=hashlib.sha256()))
    arguments = "hasher=logs.log.hasher, data=b'', x=torch.ones(1), act=bytes, self=logs"
    exec(f"def write_sheet({arguments}):\n    torch.is_grad_enabled()\n    {line}\n", space)
    space["write_sheet"]()
    assert found == [uses]


@pytest.mark.parametrize(
    ("line", "weights"),
    [
        ("ema.update(model)", True),
        ("model_ema.step(model.parameters())", True),
        ("update_target_network(model, other)", True),
        ("soft_update(model, other)", True),
        ("swa_model.update_parameters(model)", True),
        ("average.load_state_dict(model.state_dict())", True),
        ("generate(model)", False),
        ("found = model(batch)", False),
        ("schema.validate(model)", False),
        ("network.target_size(model)", False),
    ],
)
def test_names_tell_that_code_works_on_weights(line: str, weights: bool) -> None:
    names = ("ema", "model_ema", "swa_model", "average", "model", "other", "batch", "schema", "network")
    functions = ("update_target_network", "soft_update", "generate")
    space: dict[str, Any] = dict.fromkeys((*names, *functions), MagicMock()) | {"frame": sys._getframe}
    exec(f"def main():\n    {line}; found = frame(0); return found\n", space)
    assert averages(space["main"](), (0, 0)) == weights


@pytest.mark.parametrize(("at", "line"), [(0, 7), (4, 8), (6, 8), (10, 9)])
def test_an_instruction_without_a_line_is_at_the_last_one_before(at: int, line: int) -> None:
    """Python 3.11 lets other threads run at the end of a loop, and that has no line if the loop ends with an `if`."""
    lines = [(0, 4, 7), (4, 6, 8), (6, 10, None), (10, 12, 9)]
    code = types.SimpleNamespace(co_lines=lambda: lines, co_firstlineno=6)
    known = {start: of for start, _, of in lines}
    frame = types.SimpleNamespace(f_lineno=known[at], f_lasti=at, f_code=code)
    assert line_of(cast(Any, frame)) == line
