"""Records backward passes and the steps of optimizers, which show where a training step ends."""

from __future__ import annotations

import importlib
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...ledger.causes import COLLECTIVE_OPS
from ..machine import NOT_ENTERED
from ..patching import MARK, NothingToHook, Patches
from ..wait_codes import UNKNOWN_WAIT, WaitCode

if TYPE_CHECKING:
    from ..exchange.exchange import Exchange
    from ..session import Session

_BROADCAST = COLLECTIVE_OPS.index("broadcast")
_REBUILDS_WITHIN = 2
"""A DDP module rebuilds its buckets within this many steps after its first forward pass. With accumulated gradients,
too, its first backward pass is in the first of these steps."""


def install_step(session: Session) -> Callable[[], None]:
    """Installs a global post-step hook of torch.optim (torch >= 2.4)."""
    from ..compiling import is_compiling

    module = importlib.import_module("torch.optim.optimizer")  # torch's types do not have it as a name of `torch.optim`
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is None:
        raise NothingToHook("torch.optim.optimizer.register_optimizer_step_post_hook")

    known: dict[int, weakref.ref[Any]] = {}
    loop = session.loop
    unseen = loop.compiled_step

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_compiling():
            # Dynamo traces this line as a side effect of the compiled step. It does not depend on what is in the list.
            unseen[0] = True
            return
        key = id(optimizer)
        if key not in known:
            known[key] = weakref.ref(optimizer, lambda _: gone(key))
            loop.optimizer_met(key, optimizer)
        loop.optimizer_stepped(key)

    def gone(key: int) -> None:
        known.pop(key, None)
        loop.trainings.fresh.pop(key, None)
        if loop.steps.forget(key):
            session.returned()

    handle = register(stepped)
    session.state("step", "active")
    return handle.remove


def install_backward(session: Session) -> Callable[[], None]:
    """Replaces autograd's engine with an object of a subclass of it, whose ``run_backward`` is recorded.

    ``backward`` and ``autograd.grad`` enter the engine through that method. Pipeline schedules of Megatron call it
    directly, because torch's ``backward`` would compare the shapes of an output whose memory they have freed.

    With several ranks, it also brackets what runs after the last gradient: DDP's C++ reducer waits for its collectives
    in callbacks of the engine and never calls ``Work.wait``. The engine runs callbacks in the order in which they were
    queued. So a callback that is queued by a hook of the root node runs before those of DDP. If this callback queues
    another one when it runs, that one comes after those of DDP.
    """
    from torch.autograd import Variable

    from ..compiling import is_compiling

    engine: Any = Variable._execution_engine
    if getattr(engine, MARK, False):
        return lambda: None
    loop = session.loop
    original, queue_callback = engine.run_backward, engine.queue_callback

    class Engine(type(engine)):
        """Has no state: all objects of autograd's class stand for the same engine in C++."""

        def run_backward(self, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(*args, **kwargs)
            outputs = args[0] if args else kwargs.get("tensors")
            bracket = None
            try:
                loop.backward_begins(outputs, kwargs.get("accumulate_grad", True))
                code = loop.reduced_in() if session.world_size > 1 else None
                # FSDP2's hooks run in autograd's thread of the device and report waits, so that thread must be known.
                if code is not None or (session.machine.device is not None and not session.machine.helper):
                    bracket = _FinalBracket(session, outputs, code, queue_callback)
                return original(*args, **kwargs)
            finally:
                if bracket is not None:
                    bracket.close()
                loop.backward_ends()

    setattr(Engine, MARK, True)
    hooked: Any = Engine()
    Variable._execution_engine = hooked
    session.state("backward", "active")

    def undo() -> None:
        if Variable._execution_engine is hooked:
            Variable._execution_engine = engine

    return undo


class _FinalBracket:
    """A bracket around the engine's final callbacks, in which DDP waits. ``code`` is None if nothing waits there.

    Each backward pass has its own callbacks, also one inside another (a reentrant checkpoint). DDP waits in the one
    that computes its last gradient.
    """

    __slots__ = ("_code", "_handle", "_old", "_queue_callback", "_session")

    def __init__(
        self, session: Session, outputs: Any, code: WaitCode | None, queue_callback: Callable[[Callable[[], None]], Any]
    ):
        self._session = session
        self._code = code
        self._queue_callback = queue_callback
        self._old = NOT_ENTERED
        self._handle = None
        try:
            output = outputs[0]
            # A GradientEdge (used in zero-bubble pipelines) has its node in another field than a tensor.
            root = output.grad_fn if hasattr(output, "grad_fn") else output.node
            compiled_autograd = sys.modules.get("torch._dynamo.compiled_autograd")
            # Compiled autograd traces hooks. This one must not become a part of its graph.
            if root is not None and not getattr(compiled_autograd, "compiled_autograd_enabled", False):
                self._handle = root.register_prehook(self._queue)
        except Exception as error:  # the fence around the training
            session.fault("backward", error)

    def _queue(self, grads: Any) -> None:
        try:
            # On an accelerator, this runs in autograd's thread of the device, for which the training thread waits. A
            # pass inside another one uses the same thread, so `helper` is not reset at the end of a pass.
            machine, thread = self._session.machine, threading.get_ident()
            if machine.helper != thread:
                machine.helper, machine.helper_tid = thread, threading.get_native_id()  # type: ignore[union-attr]
            if self._code is not None:
                self._queue_callback(self._before)
        except Exception as error:  # the fence around the training
            self._session.fault("backward", error)

    def _before(self) -> None:
        try:
            self._queue_callback(self._after)
            code, session = self._code, self._session
            if code is not None:
                plain = session.machine.device is None and not session.off
                self._old = session.machine.enter_wait(code) if plain and code >= 0 else session.wait_begins(code)
        except Exception as error:  # the fence around the training
            self._session.fault("backward", error)

    def _after(self) -> None:
        old = self._old
        if old != NOT_ENTERED:
            self._old = NOT_ENTERED
            self._session.machine.leave_wait(old)

    def close(self) -> None:
        """Ends the bracket, also after a backward pass that raised."""
        if self._handle is None:
            return
        try:
            self._handle.remove()
            if self._old != NOT_ENTERED:
                self._after()
        except Exception as error:  # the fence around the training
            self._session.fault("backward", error)


def install_ddp(session: Session) -> Callable[[], None]:
    """Finds out how many bytes of gradients DDP's reducer will send, because it makes no Python call when it does."""
    from torch import is_grad_enabled
    from torch.nn.parallel.distributed import DistributedDataParallel

    from ..compiling import is_compiling

    patches = Patches()
    loop = session.loop
    rebuilds = _Rebuilds(session)
    # id of a DDP module -> the module, the bytes of its gradients, the code of its wait, the exchange of that code, and
    # one of its parameters
    known: dict[int, tuple[weakref.ref[Any], int, WaitCode, Exchange | None, weakref.ref[Any]]] = {}

    def look(module: Any) -> tuple[weakref.ref[Any], int, WaitCode, Exchange | None, weakref.ref[Any]]:
        code = session.code_of(module.process_group)
        before, key = known.get(id(module)), id(module)
        if before is not None and before[0]() is module:
            alive, size, first = before[0], before[1], before[4]
        else:
            alive = weakref.ref(module, lambda _: known.pop(key, None))
            trained = [p for p in module.module.parameters() if p.requires_grad]
            size = sum(p.numel() * p.element_size() for p in trained)
            first = weakref.ref(trained[0])  # DDP refuses a module without any
            rebuilds.expect()
        # The code of an unknown group may become known.
        found = known[key] = alive, size, code, session.exchange if code != UNKNOWN_WAIT else None, first
        return found

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            if not is_compiling() and is_grad_enabled():
                try:
                    seen = known.get(id(module))
                    if seen is None or seen[3] is None or seen[3] is not session.exchange or seen[0]() is not module:
                        seen = look(module)
                    size = seen[1] if module.require_backward_grad_sync else 0
                    kept = getattr(seen[4](), "grad", None) is not None
                    loop.reducer_seen(id(module), size, seen[2], kept)
                except Exception as error:  # the fence around the training
                    session.fault("ddp", error)
            return original(module, *args, **kwargs)

        return forward

    patches.replace(DistributedDataParallel, "forward", make)
    rebuilds.expect()  # of a module whose forward pass the hook does not see
    # If a model has buffers (for example of batch norm), rank 0 broadcasts them in each forward pass, and C++ waits.
    if hasattr(DistributedDataParallel, "_distributed_broadcast_coalesced"):
        patches.replace(DistributedDataParallel, "_distributed_broadcast_coalesced", _around_broadcast(session))
    session.state("ddp", "active")

    def undo() -> None:
        patches.undo()
        rebuilds.undo()

    return undo


class _Rebuilds:
    """Brackets the rebuild of DDP's buckets. After its first backward pass, the reducer broadcasts the order of the
    gradients to the other ranks, and waits for that. DDP calls it in each forward pass, but later calls do nothing. So
    the patch is undone then, until another DDP module appears."""

    def __init__(self, session: Session):
        self._session = session
        self._patches = Patches()
        self._until = 0

    def expect(self) -> None:
        """A DDP module runs forward for the first time, or may do so soon."""
        from torch._C import _distributed_c10d

        self._until = self._session.machine.steps + _REBUILDS_WITHIN
        reducer = getattr(_distributed_c10d, "Reducer", None)
        if hasattr(reducer, "_rebuild_buckets"):
            self._patches.replace(reducer, "_rebuild_buckets", self._bracketed)

    def undo(self) -> None:
        self._patches.undo()

    def _bracketed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        from ..compiling import is_compiling

        session = self._session

        def _rebuild_buckets(reducer: Any, /, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(reducer, *args, **kwargs)
            machine = session.machine
            if machine.steps > self._until:
                self.undo()
                return original(reducer, *args, **kwargs)
            old = session.wait_begins(session.loop.reduced_in() or UNKNOWN_WAIT)
            try:
                return original(reducer, *args, **kwargs)
            finally:
                machine.leave_wait(old)

        return _rebuild_buckets


def _around_broadcast(session: Session) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    from ..compiling import is_compiling

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def _distributed_broadcast_coalesced(module: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(module, tensors, *args, **kwargs)
            try:
                size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
                session.count_collective(_BROADCAST, size, session.code_of(module.process_group))
            except Exception as error:  # the fence around the training
                session.fault("ddp", error)
            old = session.wait_in(module.process_group)
            try:
                return original(module, tensors, *args, **kwargs)
            finally:
                session.machine.leave_wait(old)

        return _distributed_broadcast_coalesced

    return make
