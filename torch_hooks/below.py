"""Below which function the training thread is: one that makes batches, logs, saves, or steps environments.

Names decide. The innermost function with a known name counts. Functions below which the model was seen at work, such as
a trainer that is an iterator, hold the whole loop and say nothing. Only names of functions, classes, modules and files
are read.
"""

from __future__ import annotations

import builtins
import fcntl
import os
import re
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from dis import Instruction, get_instructions
from functools import lru_cache
from inspect import CO_GENERATOR
from itertools import pairwise, takewhile
from operator import itemgetter
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MappingProxyType, ModuleType
from typing import TYPE_CHECKING

from ..ledger.below import BELOW, BLOCKERS, OPTIMIZER, STATES, TESTING
from ..ledger.layout import WORD_AT
from ..linux import syscalls
from .user_code import is_library, line_of, stack_of

if TYPE_CHECKING:
    from .machine import PhaseMachine

DATA, LOGGING, SAVING, _ACTING, _NOTHING = "data", "logging", "saving", "acting", ""
_COLLECTING, _INFERRING, _WORK, _LEARNS, _TESTS = "collecting", "inferring", "work", "learns", "tests"
_AT_WORK = frozenset((_WORK, _LEARNS, _TESTS))
IN_THREADS = frozenset((DATA, LOGGING, SAVING))
"""What a thread may do for a loop that waits for it."""
_DEEPEST = 200
_KEPT = 1024
_MOST_CLASSES = 256
"""The most classes that are searched for a function."""
_MOST = 64
"""The most functions that are counted."""

_GETS = "get|next|load|read|fetch|make|sample|build|prepare|pull|pop|receive|recv"
_BATCH = "batch|batches|samples?|examples?|data"
_OF_GRAPHS = "(neighbou?r(hood)?s?|sub_?graphs?|(random_)?walks?)"
_PREPARES = r"(augment|preprocess|tokeni[sz]e|collate)(_(\w+_)?(fn|function|images?|texts?|inputs?|"
_MAKES_BATCHES = re.compile(
    rf"__next__|_*((get|load|read|fetch)_next|({_GETS})_(next_)?(mini_?)?({_BATCH})"
    rf"|sample_(\w+_)?{_OF_GRAPHS}|{_OF_GRAPHS}_sampl(e|ing)|(load|read|fetch)_(?!\w*(checkpoint|ckpt|expert|model|weight|state|log_))(\w+_)?(shards?|chunks?|records?)|{_PREPARES}{_BATCH}))?)"
)
_YIELDS_BATCHES = re.compile(
    r"__iter__|.*(batch|data|sample|example|loader|stream|cycle|shard|record|feed)"
    r"|_*((train|training|val|valid|validation|test|image|img|input|my|get|create|make)_)?gen(erator)?$",
    re.IGNORECASE,
)
"""A generator of such a name makes what the loop asks for."""
_OF_DATA_SETS = frozenset(("__getitem__", "__getitems__", "__iter__"))
_DATA_SET = re.compile(r"data|loader|sampler|reader|corpus|stream|pipe", re.IGNORECASE)
_LOGS = frozenset(("log", "on_log", "log_dict", "callback"))
_STATE = "checkpoint|ckpt|model|weights|params|state|network|net|policy"
_SAVES = re.compile(
    rf"_*(save|savez(_compressed)?|(\w+_)?save_\w+|(write|dump|store|export|upload|persist)_(\w+_)?({_STATE})|save({_STATE})"
    r"|persist|((take|make|create|write)_)?snapshot|push_to_hub)",
    re.IGNORECASE,
)
_SHOWN = (
    r"(images?|imgs?|pngs?|jpe?gs?|gifs?|videos?|audios?|wavs?|fig(ure)?s?|plots?|samples?|grids?|curves?|html|csv)"
)
_TOLD = r"(metrics?|loss(es)?|scalars?|stats|histor(y|ies)|logs?|results?|predictions?)"
_NOT_RECORDS = (
    r"(?!\w*(checkpoint|ckpt|model_and|running_stats|draw_(\w+_)?samples?)|(\w+_)?_?log_loss$"
    r"|log_(cosh|ratio|spectral|probs?|to_(linear|mel|probs?))(_|$)|track_(step|epoch)$)"
)
_MORE_TOLD = r"(histograms?|texts?|grad(ient)?s?(_norms?)?|reconstructions?|progress|epoch|step)"
_RECORDS = re.compile(
    rf"{_NOT_RECORDS}_*(\w+_)?((save|dump|write|plot|draw)_(\w+_)?({_SHOWN}|{_TOLD})"
    rf"|(log|record|print|show|report|track|visuali[sz]e)_(\w+_)?({_SHOWN}|{_TOLD}|{_MORE_TOLD}))"
    r"|_*(plot|visuali[sz]e|log_to_\w+)",
    re.IGNORECASE,
)
"""It writes what people look at, and not a checkpoint."""
_HUMP = re.compile(r"(?<=[a-z\d])(?=[A-Z])")
_STEP = r"_*(env_?(step|reset)|(step|reset)_?envs?)"
_STEPS = re.compile(_STEP)
_COLLECTS = re.compile(
    r"_*(rollouts?|self_?play"
    r"|(collect|gather|generate|run|play|simulate|do|execute)_(\w+_)?"
    r"(rollouts?|episodes?|trajector(y|ies)|experiences?))"
)
"""The model works in such a function, too. With gradients, it may be what a loop learns from: unrolled steps."""
_REWARDS = re.compile(r"_*(\w+_)?(rewards?|advantages?)(_\w+)?")
_PAIRS = re.compile(r"(\w+_)?(chosen|rejected)(_\w+)?")
"""Code with such names learns its rewards from pairs."""
_ENVIRONMENT = re.compile(r"Env|Simulat|Emulat|Game|World|Arena")
_OF_ENVIRONMENTS = frozenset(("step", "reset", "_step", "_reset"))
_ENVIRONMENTS = re.compile(r"(\w+_)?env(ironment)?s?")
_STANDARD = {*sys.stdlib_module_names, "numpy"}
_NEAR = 32
"""How many frames are looked at."""
_LOGGER = re.compile(r"Callback|Logger|Tracker|SummaryWriter")
_OTHER_CALLBACK = re.compile(r"Eval|Checkpoint|Valid")
_EVALUATES = re.compile(r"_*(evaluat(e|ion)|validat(e|ion))(_\w+)?")
"""The model works in such a function, and in a callback that evaluates. So what calls it is not a logger."""
_NAMED_TEST = re.compile(
    r"(?!.*(train|fit|learn|cross_valid))((meta_)?test|(\w*_)?(eval(uate)?|val(idat(e|ion))?)"
    r"|(\w*_)?(eval(uate)?|val(idat(e|ion))?|test)_(agent|model|net(work)?|policy|epoch|one_epoch|step|loop|episodes?)"
    rf"|{_EVALUATES.pattern})"
)
"""The same without those that also train, and with shorter names. The model may do other things in such a function, so
only what it does with gradients off, or in environments, tells."""
_OF_WEIGHTS = re.compile(r"(named_)?(parameters|buffers)|(load_)?state_dict|lerp_?|_foreach_\w+|copy_to")
_AVERAGES = re.compile(
    r"_*((\w+_)?(ema|swa|polyak|moving_averages?)(_\w+)?|update_parameters|average_(\w+_)?(weights|models?|params?)"
    r"|(soft|hard|momentum|target)_(update|sync)(_\w+)?|(update|sync|copy)_(\w+_)?(target|momentum|teacher|key_encoder)(_\w+)?)",
    re.IGNORECASE,
)
"""What averages or copies weights works on these, or has such a name."""
_INFERS = re.compile(r"_*(generat(e|ion)|sampl(e|ing)|predict(ion)?|infer(ence)?|decode)(_\w+)?")
"""So does it in such a function, if gradients are off."""
_LOGGERS = (
    *("logging", "loguru", "wandb", "mlflow", "tensorboard", "tensorboardX", "comet_ml", "neptune", "clearml", "aim"),
    *("swanlab", "trackio", "torch.utils.tensorboard"),
)
_TRANSFORMS = (
    "torchvision.transforms",
    "torchaudio.transforms",
    "albumentations",
    "batchgenerators",
    "monai.transforms",
)
"""Some of these are modules of torch, and work on samples all the same."""
_OURS = __name__.partition(".")[0]
_MODELS = ("torch.nn.modules", "torch.nn.parallel", "torch.autograd", "torch._dynamo")
_NO_OPTIMIZER = ("torch.optim.swa_utils", "torch.optim.lr_scheduler")
_CALLS_CLOSURES, _WITH_GRADIENTS = ("step", "_directional_evaluate"), "torch.utils._contextlib"
_OTHERS = ("torch.optim.optimizer", *_NO_OPTIMIZER)
"""Modules that call no closures. The first one calls optimizers, also the training's own."""
_FORWARD = frozenset(("_wrapped_call_impl", "_call_impl", "_slow_forward"))
"""Methods of torch's Module. Its other methods are also called by what averages the weights."""
_BACKWARD = frozenset(("torch.autograd", "torch.autograd.graph"))
_BACKWARD_PASS = "backward"
"""A function of these. The others return gradients, which an evaluation may need, too."""

_ON = {
    syscalls.SOCKET: "a socket",
    syscalls.SEND: "a socket",
    syscalls.POLL: "a pipe",
    syscalls.LOCK: "a queue or a lock",
    syscalls.SLEEP: "a sleep",
    syscalls.FAULT: "files",
    **dict.fromkeys((syscalls.READ, syscalls.WRITE, syscalls.SYNC, syscalls.METADATA, syscalls.CLOSE), "files"),
    **dict.fromkeys((syscalls.FILE_LOCK, syscalls.QUEUE), "files"),
}
_LINKS = {"pipe:": "a pipe", "socket:": "a socket"}
_GETPIPE_SZ = 1032  # F_GETPIPE_SZ of fcntl(2)

_HOLDS = 0.1
"""A function holds the whole loop if this share of the looks below it found the model at work, and at least two did."""

_kinds: dict[int, tuple[CodeType, str]] = {}
"""By ``id``: functions of different classes may have equal code objects."""


_uses_torch: dict[CodeType, dict[int | None, bool]] = {}
"""Function -> line -> whether it uses torch. Lines that do not say are left out. None: the whole function."""
_QUICK = frozenset(("", "itertools", "math", "operator", "os", "sys", "time"))
"""Modules that say nothing of a line: they do not compute for long."""
_ELSEWHERE = frozenset((FunctionType, type))
"""What has a frame of its own when it runs."""
_IN_PLACE = re.compile(r"[a-z]\w*[a-z\d]_")
"""Names of methods that work in place: hardly anything but tensors has such ones."""
_MAKERS = frozenset(("tensor", "as_tensor"))
_COPIES = frozenset(("to", "cuda", "copy_"))
_LOADS_ATTRIBUTE, _LOADS_GLOBAL = ("LOAD_METHOD", "LOAD_ATTR"), ("LOAD_GLOBAL", "LOAD_NAME")
_OF_ANY_OBJECT = ("BINARY_", "COMPARE_", "INPLACE_", "UNARY_", "STORE_SUBSCR", "PUSH_NULL", "CALL_FUNCTION")
"""Instructions that may work on tensors, or call a variable that is a function of torch."""

Function = tuple[str, CodeType]
"""One of BELOW, and the function."""


class Below:
    """Counts looks. Only one thread at a time calls it."""

    def __init__(self, machine: PhaseMachine):
        self._machine = machine
        self._works: Counter[CodeType] = Counter()  # looks that found the model at work below a function
        self._learns: set[CodeType] = set()  # functions below which the model was seen to learn
        self.acts = False
        """Whether an environment is on the last stack of `find`, or something that collects experience from one. If
        gradients are on, only an environment counts."""
        self.forward = False
        """Whether a module runs forward on that stack, or it is an inference by its names."""
        self.in_torch = False
        """Whether the model, a backward pass or an optimizer is on the last stack of `find`, or it ends in torch."""
        self.in_model = False
        """The same without evaluations, which are known by their names."""
        self.ends_in_torch = False
        self.at_work = False
        """Whether the model, a backward pass or an optimizer is on the last stack of `find`."""
        self.in_optimizer = False
        """Whether an optimizer is the innermost of these."""
        self._counts: dict[str, dict[CodeType, Counter[str]]] = {kind: {} for kind in BELOW}
        self._stand: dict[str, dict[CodeType, Counter[str]]] = {kind: {} for kind in BELOW}
        """For how many ns they stand."""

    def find(self, frame: FrameType | None, learns: bool = True) -> Function | None:
        """The function of a known kind that the thread is in; None if there is none. ``learns``: this is one look more,
        and tells which functions hold the whole training."""
        found: Function | None = None
        works = trained = trains = self.acts = self.forward = self.at_work = self.in_optimizer = False
        called = True  # whether nothing is at work between what was found and the frame
        closed = False  # whether an optimizer has called the loop's own code, which makes a step: its closure
        callee: FrameType | None = None
        inner = frame
        while inner is not None and _is_in(_module_of(inner), (_OURS,)):
            inner = inner.f_back
        self.in_torch = inner is not None and _is_in(_module_of(inner), ("torch",))
        self.ends_in_torch = self.in_model = self.in_torch
        for _ in range(_DEEPEST):
            if frame is None:
                break
            code, module = frame.f_code, _module_of(frame)
            kind = kind_of(code, frame)
            optimizes = kind == _LEARNS and _is_in(module, (OPTIMIZER,))
            closed = closed or (optimizes and _calls_closure(frame, callee))
            if (optimizes and closed) or (kind == _TESTS and self._trains_in(code, trains and learns)):
                kind = _NOTHING
            if kind in _AT_WORK:
                if not self.at_work:
                    self.in_optimizer = optimizes and module not in _NO_OPTIMIZER
                self.in_torch = self.at_work = True
                self.in_model = self.in_model or kind != _TESTS
                self.forward = self.forward or kind == _TESTS or code.co_name in _FORWARD
                works, called = works or found is None, called and found is None
                trained = trained or kind == _LEARNS
                trains = trains or self.in_optimizer or (module in _BACKWARD and code.co_name == _BACKWARD_PASS)
                if kind == _TESTS and self.acts:  # the environment is that of an evaluation
                    found, works, self.acts = (TESTING, code), True, False
            elif kind == _INFERRING:
                self.forward = True
            elif kind in (_ACTING, _COLLECTING):
                if trained and learns and len(self._learns) < _MOST:
                    self._learns.add(code)
                if code not in self._learns and (found is None or self.acts):
                    self.acts = True
                    if kind == _ACTING and (found is None or (called and self._gives_way(found, kind, code))):
                        found = kind, code
            elif kind:
                if kind == LOGGING:
                    code = _callback(code, callee)
                if works:
                    self._works[code] += learns and (len(self._works) < _MOST or code in self._works)
                elif found is None or (called and self._gives_way(found, kind, code)):
                    found = kind, code
            callee, frame = frame, frame.f_back
        return None if found is None or self._holds_all(found) else found

    def _trains_in(self, code: CodeType, trains: bool) -> bool:
        """Whether a function with the name of an evaluation trains. ``trains``: it does so on this stack."""
        if trains and len(self._learns) < _MOST:
            self._learns.add(code)
        return code in self._learns

    def _gives_way(self, found: Function, kind: str, code: CodeType) -> bool:
        """Whether a function was found in a library, and one of the training's own has called it for the same."""
        return (
            kind == found[0]
            and is_library(found[1].co_filename)
            and not is_library(code.co_filename)
            and not self._holds_all((kind, code))
        )

    def _holds_all(self, function: Function) -> bool:
        kind, code = function
        if kind in (_ACTING, TESTING):
            return code in self._learns
        counts = self._counts[kind].get(code, Counter())
        looks = sum([counts[state] for state in STATES])
        return self._works[code] >= max(2, _HOLDS * (looks + self._works[code]))

    def count(self, function: Function, state: str, call: bytes, ns: int) -> None:
        """``state``: one of STATES. ``call``: the line of /proc/self/task/TID/syscall if the thread was blocked; empty
        if it was not, or waited for another thread that computes. ``ns``: for how long the look stands."""
        kind, code = function
        counts = self._counts[kind]
        if code not in counts and len(counts) >= _MOST:
            return
        counts.setdefault(code, Counter())[state] += 1
        stand = self._stand[kind]
        stand.setdefault(code, Counter())[state] += ns
        if call:
            counts[code][blocker_of(call)] += 1
        known = [one for one in counts if not self._holds_all((kind, one))]
        words = self._machine.words
        for name, parts, of in (
            (f"{kind}_looks", STATES, counts),
            (f"{kind}_looked_ns", STATES, stand),
            (f"{kind}_blocked_on", BLOCKERS, counts),
        ):
            for index, part in enumerate(parts):
                words[WORD_AT[name][0] + index] = sum([of[one][part] for one in known])
        most = max(known, key=lambda one: stand[one].total(), default=None)
        text = f"{os.path.basename(most.co_filename)}:{most.co_firstlineno} {most.co_name}" if most is not None else ""
        self._machine.write_string(f"{kind}_below", text)


def _calls_closure(frame: FrameType, callee: FrameType | None) -> bool:
    """Whether an optimizer of torch has called the function that it was given. LBFGS switches gradients on for it."""
    if callee is None or frame.f_code.co_name not in _CALLS_CLOSURES or _module_of(frame) in _OTHERS:
        return False
    module = _module_of(callee)
    return module == _WITH_GRADIENTS or not _is_in(module, ("torch", _OURS))


def _callback(code: CodeType, callee: FrameType | None) -> CodeType:
    """The training's own function that a library's logger or handler of callbacks has called; otherwise ``code``."""
    if callee is None or not is_library(code.co_filename) or _is_in(_module_of(callee), (_OURS,)):
        return code
    return code if is_library(callee.f_code.co_filename) else callee.f_code


def uses_torch(frame: FrameType) -> bool:
    """Whether the line that this frame is at names a module, a function or a class of torch. If it names no other code
    that runs without a frame either, nor only methods that tensors do not have, its function decides: methods of
    tensors are called without a name of torch."""
    code = frame.f_code
    lines = _uses_torch.get(code)
    if lines is None:
        if len(_uses_torch) >= _KEPT:
            _uses_torch.clear()
        lines = _uses_torch[code] = _lines_with_torch(code, frame.f_globals)
    return lines.get(line_of(frame), lines[None])


def _lines_with_torch(code: CodeType, known: Mapping[str, object]) -> dict[int | None, bool]:
    found: dict[int | None, bool] = {None: any(_is_in(_home_of(known.get(name)), ("torch",)) for name in code.co_names)}
    tensor = getattr(sys.modules.get("torch"), "Tensor", object)
    methods: dict[int, bool] = {}  # line -> whether a tensor may have what it takes of objects
    of_global = False
    for (one, line), (then, _) in pairwise(_with_lines(code)):
        if line is None:
            continue
        if one.opname in _LOADS_ATTRIBUTE and not of_global and then.opname not in _LOADS_ATTRIBUTE:
            name = str(one.argval)
            methods[line] = methods.get(line, False) or hasattr(tensor, name)
            if _IN_PLACE.fullmatch(name) and hasattr(tensor, name):
                found[line] = True
        elif one.opname.startswith(_OF_ANY_OBJECT):
            methods[line] = True
        if not (of_global := one.opname in _LOADS_GLOBAL):
            continue
        named = known.get(str(one.argval))
        if (home := _home_of(named)) in _QUICK:
            continue
        called = vars(named).get(str(then.argval)) if type(named) is ModuleType else named
        if _is_in(home, ("torch",)):
            found[line] = True
        elif callable(called) and type(called) not in _ELSEWHERE and not type(called).__module__.startswith("torch"):
            found.setdefault(line, False)
    return {line: False for line, tensors in methods.items() if not tensors} | found


def makes_tensors(frame: FrameType) -> bool:
    """Whether the line of this frame uses torch only to make tensors of Python's objects. That keeps Python's lock, and
    does not wait for a device."""
    if _MAKERS.isdisjoint(frame.f_code.co_names):
        return False  # to decode a large function takes milliseconds
    found, loads = set[str](), _loads_of_line(frame)
    for (how, name), (_, then) in pairwise((*loads, ("", ""))):
        named = frame.f_globals.get(name) if how in _LOADS_GLOBAL else None
        if _is_in(_home_of(named), ("torch",)):
            found.add(then if type(named) is ModuleType else name)
    return bool(found) and found <= _MAKERS


def copies(frame: FrameType) -> bool:
    """Whether the line that this frame is at copies a tensor, to a device or on the CPU, or converts one."""
    if _COPIES.isdisjoint(frame.f_code.co_names):
        return False
    return any(how in _LOADS_ATTRIBUTE and name in _COPIES for how, name in _loads_of_line(frame))


def _with_lines(code: CodeType) -> Iterator[tuple[Instruction, int | None]]:
    starts = [(start, line) for start, _, line in code.co_lines()]
    for one in get_instructions(code):
        if one.opname != "EXTENDED_ARG":
            yield one, starts[bisect_right(starts, one.offset, key=itemgetter(0)) - 1][1]


def is_apart(frame: FrameType) -> bool:
    """Whether the function of this frame is of a package that works without torch, or its line calls only such ones."""
    if _works_apart(_module_of(frame).partition(".")[0]):
        return True
    known = frame.f_globals
    homes = {
        _home_of(known.get(name, vars(builtins).get(name))).partition(".")[0]
        for loads, name in _loads_of_line(frame)
        if loads in _LOADS_GLOBAL
    }
    return bool(homes) and all(map(_works_apart, homes))


@lru_cache(maxsize=_KEPT)
def _works_apart(package: str) -> bool:
    """Whether it is Python's standard library, NumPy, or an installed package of which no module has imported torch.
    An extension that waits for torch's device has. It may also be a module without a package."""
    if package in _STANDARD:
        return True
    top = sys.modules.get(package)
    path = str(vars(top).get("__file__")) if top is not None and issubclass(type(top), ModuleType) else ""
    if not (path.endswith(".py") and is_library(path)):
        return False
    modules = [one for name, one in [*sys.modules.items()] if _is_in(name, (package,))]
    return not any(_home_of(vars(one).get("torch")) for one in modules if issubclass(type(one), ModuleType))


def _loads_of_line(frame: FrameType) -> tuple[tuple[str, str], ...]:
    return _loads_by_line(frame.f_code).get(line_of(frame), ())


@lru_cache(maxsize=_KEPT)
def _loads_by_line(code: CodeType) -> dict[int | None, tuple[tuple[str, str], ...]]:
    """(instruction, name) of what each line takes from its module, from Python's builtins, and of objects."""
    found: dict[int | None, tuple[tuple[str, str], ...]] = {}
    for one, line in _with_lines(code):
        if one.opname in (*_LOADS_GLOBAL, *_LOADS_ATTRIBUTE):
            found[line] = (*found.get(line, ()), (one.opname, str(one.argval)))
    return found


@lru_cache(maxsize=_KEPT)
def _called_by_line(code: CodeType) -> dict[int | None, tuple[str, ...]]:
    """The names of what each line calls. Others in it may be numbers: `cfg.ema_val`."""
    found: dict[int | None, tuple[str, ...]] = {}
    instructions = [*_with_lines(code)]
    spread = {line for one, line in instructions if one.opname in ("CALL_FUNCTION_EX", "CALL_FUNCTION_KW")}
    nothing = (None, None)
    for (before, _), (one, line), (then, _) in zip(
        (nothing, *instructions), instructions, (*instructions[1:], nothing), strict=False
    ):
        beside = then if sys.version_info >= (3, 13) else before
        called = (
            one.opname == "LOAD_METHOD"
            or (one.opname.startswith("LOAD_") and "NULL" in one.argrepr)
            or (one.opname == "LOAD_ATTR" and line in spread)
            or (one.opname == "LOAD_NAME" and beside is not None and beside.opname == "PUSH_NULL")
            or (one.opname in _LOADS_GLOBAL and sys.version_info < (3, 11))
        )
        if called:
            found[line] = (*found.get(line, ()), str(one.argval))
    return found


def is_of_torch(frame: FrameType, *packages: str) -> bool:
    """Whether it is a function of torch, or of these packages, or one of whyidle's that such a function has called."""
    one: FrameType | None = frame
    while one is not None and _is_in(_module_of(one), (_OURS,)):
        one = one.f_back
    return one is not None and _is_in(_module_of(one), packages or ("torch",))


def users_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is neither torch's nor ours; None if there is none near."""
    return next((one for one in stack_of(frame, _NEAR) if not _is_in(_module_of(one), ("torch", _OURS))), None)


def enters_loader(frame: FrameType) -> bool:
    """Whether it is in torch's loader, or in what that calls in torch."""
    near = takewhile(lambda one: _is_in(_module_of(one), ("torch", _OURS)), stack_of(frame, _NEAR))
    return any(_is_in(_module_of(one), ("torch.utils.data",)) for one in near)


def caller_of_model(frame: FrameType) -> FrameType | None:
    """The frame that has called the outermost module, backward pass or optimizer of a stack; without one, the frame."""
    found: FrameType | None = frame
    one: FrameType | None = frame
    own = False
    for _ in range(_DEEPEST):
        if one is None:
            break
        kind = kind_of(one.f_code, one)
        # A trainer may call its steps in an optimizer's step, and an evaluation calls the model.
        if kind == _WORK or (kind == _LEARNS and not own):
            found = one.f_back
        own = own or not _is_in(_module_of(one), ("torch", _OURS))
        one = one.f_back
    return found


def collects(frame: FrameType | None, *, inferred: bool = False) -> bool:
    """Whether the code of this frame collects experience, by names: it calls a function of _STEPS, or steps and resets
    something that it calls an environment; or it is, calls, or is called by, one of _COLLECTS. Not if that is an
    evaluation. ``inferred``: a module ran forward. Then it is enough that the code has rewards."""
    names = _names_around(frame)
    if any(map(tests, names)):
        return False
    if any(map(_COLLECTS.fullmatch, names)):
        return True
    return frame is not None and (_uses_environment(frame.f_code) or (inferred and _has_rewards(frame.f_code)))


@lru_cache(maxsize=_KEPT)
def tests(function: str) -> bool:
    """Whether a function is an evaluation by its name."""
    return _NAMED_TEST.fullmatch(_in_words(function)) is not None


@lru_cache(maxsize=_KEPT)
def _in_words(function: str) -> str:
    """`saveModel` -> `save_model`. Names that begin with a capital letter are those of classes, and stay."""
    return function if function.lstrip("_")[:1].isupper() else _HUMP.sub("_", function).lower()


def averages(frame: FrameType | None, begun: tuple[int, int]) -> bool:
    """Whether what ends at this frame works on the weights of models, by names. ``begun``: where it has begun: the
    ``id`` of the code, and the instruction."""
    if frame is None:
        return False
    code, first = begun
    names = _loaded_between(frame.f_code, first if code == id(frame.f_code) else frame.f_lasti, frame.f_lasti)
    words = map(_in_words, (frame.f_code.co_name, *names))
    return any(map(_OF_WEIGHTS.fullmatch, names)) or any(map(_AVERAGES.fullmatch, words))


@lru_cache(maxsize=_KEPT)
def _loaded_between(code: CodeType, first: int, last: int) -> frozenset[str]:
    """The names of what code loads from the beginning of the line of one instruction to another one."""
    found, of, begun = set[str](), None, False
    for one, line in _with_lines(code):
        begun = begun or one.offset >= first
        if line != of and not begun:
            found, of = set(), line
        if one.offset > last:
            break
        if one.opname.startswith("LOAD_") and one.opname != "LOAD_CONST":
            found.update(map(str, one.argval if isinstance(one.argval, tuple) else (one.argval,)))
    return frozenset(found)


def evaluation_of(frame: FrameType | None) -> CodeType | None:
    """The innermost function that is not torch's, that calls this frame, and that is an evaluation by its name."""
    found = (
        one for one in stack_of(frame, _NEAR) if tests(one.f_code.co_name) and not _is_in(_module_of(one), ("torch",))
    )
    return next((one.f_code for one in found), None)


def is_below(frame: FrameType | None, code: CodeType) -> bool:
    """Whether this function calls this frame."""
    return any(one.f_code is code for one in stack_of(frame, _NEAR))


def infers(frame: FrameType | None) -> bool:
    """Whether the code of this frame, or what its line calls, or what calls it, is an evaluation or an inference by its
    name."""
    return any(tests(name) or _INFERS.fullmatch(name) for name in _names_around(frame))


def _names_around(frame: FrameType | None) -> list[str]:
    """The names of the functions that call this frame, and those that its line calls: a decorated function that runs
    without gradients has returned when they are switched on. Without `eval`, a method of modules."""
    called = _called_by_line(frame.f_code).get(line_of(frame), ()) if frame is not None else ()
    called = [name for name in called if name != "eval"]
    return [_in_words(name) for name in (*called, *(one.f_code.co_name for one in stack_of(frame, _NEAR)))]


@lru_cache(maxsize=_KEPT)
def _has_rewards(code: CodeType) -> bool:
    names = (*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars)
    return any(map(_REWARDS.fullmatch, names)) and not any(map(_PAIRS.fullmatch, names))


@lru_cache(maxsize=_KEPT)
def _uses_environment(code: CodeType) -> bool:
    names = {*code.co_names, *code.co_varnames, *code.co_freevars}
    if any(_STEPS.fullmatch(name) for name in names):
        return True
    return {"step", "reset"} <= names and {"step", "reset"} <= _called_on_environments(code)


def _called_on_environments(code: CodeType) -> set[str]:
    """The attributes that the code takes of what it calls an environment. A training has an `optimizer.step`, too."""
    found, last, environment = set[str](), "", ""
    for one in get_instructions(code):
        if one.opname.startswith("LOAD_"):
            if one.opname in ("LOAD_ATTR", "LOAD_METHOD") and _ENVIRONMENTS.fullmatch(last):
                found.add(str(one.argval))
            for name in one.argval if isinstance(one.argval, tuple) else (one.argval,):
                last = str(name)
                environment = last if _ENVIRONMENTS.fullmatch(last) else environment
        elif one.opname == "BINARY_SUBSCR" or one.argrepr == "[]":
            last, environment = environment, ""  # one of several
    return found


def kind_of(code: CodeType, frame: FrameType) -> str:
    """What a function does, by its name and those of its class and module. ``frame``: one of it."""
    known = _kinds.get(id(code))
    if known is None:
        if len(_kinds) >= _KEPT:
            _kinds.clear()
        known = _kinds[id(code)] = code, _classify(code, _module_of(frame), frame.f_globals)
    return known[1]


def _classify(code: CodeType, module: str, known: Mapping[str, object] = MappingProxyType({})) -> str:
    name = _in_words(code.co_name)
    if _is_in(module, _TRANSFORMS):
        return DATA
    if module in _BACKWARD or _is_in(module, (OPTIMIZER,)):
        return _LEARNS
    if _is_in(module, _MODELS):
        return _WORK
    owner = getattr(code, "co_qualname", "").rpartition(".")[0]  # since Python 3.11
    owner = owner.rpartition("<locals>")[2].lstrip(".")  # without the function that the class is defined in
    if _MAKES_BATCHES.fullmatch(name):
        return DATA
    if name in _OF_DATA_SETS and (_DATA_SET.search(owner or module) or _is_of_dataset(code)):
        return DATA
    of_torch = _is_in(module, ("torch",)) and not _is_in(module, ("torch.utils.data",))
    if code.co_flags & CO_GENERATOR and _YIELDS_BATCHES.match(name) and not of_torch:
        return DATA
    if _is_in(module, _LOGGERS) or name in _LOGS or _RECORDS.fullmatch(name):
        return LOGGING
    if _SAVES.fullmatch(name) and not module.startswith("torch."):
        return SAVING
    if _EVALUATES.fullmatch(name) or _OTHER_CALLBACK.search(owner):
        return _TESTS
    if _COLLECTS.fullmatch(name):
        return _COLLECTING
    if _STEPS.fullmatch(name) or (
        name in _OF_ENVIRONMENTS and (_ENVIRONMENT.search(owner) or _is_environment(known.get(owner), module))
    ):
        return _ACTING
    if _LOGGER.search(owner):
        return LOGGING
    return _INFERRING if _INFERS.fullmatch(name) else _NOTHING


def _is_environment(owner: object, module: str) -> bool:
    """Whether a class has a `step` that takes an action, and a `reset` that returns what is observed: those of modules,
    decoders, meters and trainers return nothing."""
    if type(owner) is not type or _is_in(module, ("torch",)):
        return False
    if any(_is_in(str(vars(one).get("__module__")), ("torch",)) for one in type.mro(owner)):
        return False
    step, reset = vars(owner).get("step"), vars(owner).get("reset")
    # `isinstance` may ask an object of the user's.
    if type(step) is not FunctionType or type(reset) is not FunctionType:
        return False
    return step.__code__.co_argcount == 2 and _returns_something(reset.__code__)


def _returns_something(code: CodeType) -> bool:
    last = None
    for one in get_instructions(code):
        if one.opname == "RETURN_CONST" and one.argval is not None:
            return True
        nothing = last is not None and last.opname == "LOAD_CONST" and last.argval is None
        if one.opname == "RETURN_VALUE" and not nothing:
            return True
        last = one
    return False


def _home_of(one: object) -> str:
    """The module of a module, a function or a class. Other objects may run code of the training when they are asked."""
    if issubclass(type(one), ModuleType):
        return str(vars(one).get("__name__", ""))
    return str(one.__module__) if type(one) in (FunctionType, BuiltinFunctionType, type) else ""


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_of_dataset(code: CodeType) -> bool:
    """Whether it is a method of a subclass of torch's Dataset."""
    dataset = getattr(sys.modules.get("torch.utils.data"), "Dataset", None)
    left: list[type] = [dataset] if isinstance(dataset, type) else []
    for _ in range(_MOST_CLASSES):
        if not left:
            break
        one = left.pop()
        if getattr(vars(one).get(code.co_name), "__code__", None) is code:
            return True
        left += type.__subclasses__(one)
    return False


def _is_in(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def blocker_of(line: bytes) -> str:
    """What a thread of this process is blocked on, as one of BLOCKERS, by a line of proc_pid_syscall(5)."""
    call = syscalls.parse(line)
    if call is None:
        return BLOCKERS[-1]
    if call.name in syscalls.PROGRAMS:
        return "a subprocess"
    on = _ON.get(call.kind, BLOCKERS[-1])
    files = [call.file] if call.about == syscalls.FILE else syscalls.polled(call, "/proc/self")
    try:
        links = [os.readlink(f"/proc/self/fd/{file}") for file in files if file >= 0]  # asks no file system
    except OSError:
        return on
    for begins, what in _LINKS.items():
        if links and all(link.startswith(begins) for link in links):
            return what
    if on == "files" and any(_is_pipe(file) for file in files if file >= 0):
        return "a pipe"
    return on


def _is_pipe(number: int) -> bool:
    """Whether a descriptor is of a pipe, which may have a name among files. Asks no file system."""
    try:
        fcntl.fcntl(number, _GETPIPE_SZ)
    except OSError:
        return False
    return True
