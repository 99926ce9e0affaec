"""What each rank does in its steps: own time, collectives and batches of messages, in order.

Random numbers depend only on the seed, the rank and the step, so a run with and without its fault uses the same
numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple
from zlib import crc32

from whyidle.verdict.lookthrough import Group

from .case import COMPUTE, CPU, HOST, STORAGE, Case, dp_groups, links, pp_groups, tp_groups, world


class Own(NamedTuple):
    family: int
    ns: int


class Collective(NamedTuple):
    group: Group


class Message(NamedTuple):
    source: int
    target: int
    key: tuple[int, int, str]  # step, microbatch, "f" or "b"


class Batch(NamedTuple):
    """Messages that are issued together and waited for one after the other (`batch_isend_irecv`)."""

    group: Group
    messages: tuple[Message, ...]


class EndOfStep(NamedTuple):
    pass


Op = Own | Collective | Batch | EndOfStep


def _draw(name: str) -> float:
    """A number in [0, 1) that depends on the name only."""
    return crc32(name.encode()) / 2**32


class Programs:
    """The programs of all ranks of a case, and how long its transfers take."""

    def __init__(self, case: Case):
        self.case = case
        self.tp = {rank: group for group in tp_groups(case) for rank in group.ranks}
        self.dp = {rank: group for group in dp_groups(case) for rank in group.ranks}
        self.pp = {rank: group for group in pp_groups(case) for rank in group.ranks}
        self.world = world(case)
        fault = case.fault
        self._slow: object = None
        if fault and fault.kind.startswith("link"):
            choices = {"link_tp": tp_groups, "link_dp": dp_groups, "link_pp": links}[fault.kind](case)
            self._slow = choices[fault.at % len(choices)]
        self._deliveries: dict[Message, int] = {}
        self._transfers = {"tp": case.tp_transfer, "dp": case.dp_transfer, "world": 50_000}

    @property
    def slow_link(self) -> object:
        """The group, or the pair of neighbours, whose link is slow."""
        return self._slow

    def _factor(self, link: object) -> float:
        return 1.0 + self.case.fault.size if self.case.fault and link == self._slow else 1.0

    def transfer(self, group: Group, index: int) -> int:
        """How long call ``index`` of a group takes once every member has entered."""
        draw = 1.0 + self.case.jitter * _draw(f"{self.case.seed} {group.name} {group.ranks[0]} {index}")
        return int(self._transfers[group.name] * draw * self._factor(group))

    def delivery(self, message: Message) -> int:
        """How long a message takes. Called several times for each."""
        found = self._deliveries.get(message)
        if found is None:
            found = self._deliveries[message] = self._delivery(message)
        return found

    def _delivery(self, message: Message) -> int:
        pair = (min(message[:2]), max(message[:2]))
        draw = 1.0 + self.case.jitter * _draw(f"{self.case.seed} {message.source} {message.target} {message.key}")
        return int(self.case.pp_transfer * draw * self._factor(pair))

    # -- one rank's program

    def of(self, rank: int) -> Iterator[Op]:
        for step in range(self.case.steps):
            random = Random(f"{self.case.seed} {rank} {step}")
            yield from self._before(rank, step, random)
            yield from self._schedule(rank, step, random)
            yield from self._after(rank, step, random)
            yield EndOfStep()

    def _before(self, rank: int, step: int, random: Random) -> Iterator[Op]:
        case, fault = self.case, self.case.fault
        read, decode = case.step * 0.005 * (0.5 + random.random()), case.step * 0.003 * (0.5 + random.random())
        more = 0.8 + 0.4 * random.random()  # used with and without the fault
        if fault and fault.at == rank and fault.kind == "read":
            read += case.step * fault.size * more
        if fault and fault.at == rank and fault.kind == "decode":
            decode += case.step * fault.size * more
        if fault and fault.kind == "reads_turn" and (fault.at + step * 7) % case.ranks == rank:
            read += case.step * fault.size
        yield Own(STORAGE, int(read))
        yield Own(CPU, int(decode))

    def _after(self, rank: int, step: int, random: Random) -> Iterator[Op]:
        case, fault = self.case, self.case.fault
        if case.dp > 1:
            yield Collective(self.dp[rank])
            yield Collective(self.dp[rank])
        if case.late_norm and case.late_norm[0] == rank:
            yield Own(HOST, int(case.step * case.late_norm[1]))
        if case.norm and case.ranks > 1:
            yield Collective(self.world)
        yield Own(COMPUTE, int(case.step * 0.02))
        pause = case.step * 0.002 * random.random()
        if fault and fault.at == rank and fault.kind == "pause" and step % 2 == 0:
            pause += 2 * case.step * fault.size
        yield Own(HOST, int(pause))

    def _pass(self, rank: int, step: int, microbatch: int, work: float, random: Random) -> list[Op]:
        case = self.case
        ops: list[Op] = []
        for _ in range(case.layers):
            own = work / case.layers * (1.0 + case.jitter * (random.random() + random.random()))
            ops.append(Own(COMPUTE, int(own)))
            if case.tp > 1:
                ops.append(Collective(self.tp[rank]))
        return ops

    def _work(self, rank: int, step: int) -> list[float]:
        """Forward ns of each microbatch on this rank."""
        case, fault = self.case, self.case.fault
        replica, stage, _ = case.place(rank)
        work = [float(case.forward)] * case.microbatches
        if stage == case.pp - 1:
            work = [ns * (1.0 + case.heavy_last) for ns in work]
        spread = case.lengths
        if fault and fault.kind == "microbatches":
            spread = fault.size
        if spread:
            random = Random(f"{case.seed} lengths {step}")
            lengths = [random.lognormvariate(0.0, spread) for _ in range(case.dp * case.microbatches)]
            mean = sum(lengths) / len(lengths)
            mine = lengths[replica * case.microbatches : (replica + 1) * case.microbatches]
            work = [ns * length / mean for ns, length in zip(work, mine, strict=True)]
        if fault and ((fault.kind == "compute" and fault.at == rank) or (fault.kind == "stage" and fault.at == stage)):
            work = [ns * (1.0 + fault.size) for ns in work]
        return work

    def _schedule(self, rank: int, step: int, random: Random) -> Iterator[Op]:
        case = self.case
        work = self._work(rank, step)
        _, stage, _ = case.place(rank)
        before = rank - case.tp if stage > 0 else None
        after = rank + case.tp if stage < case.pp - 1 else None

        def forward(i: int) -> list[Op]:
            return self._pass(rank, step, i, work[i], random)

        def backward(i: int) -> list[Op]:
            return self._pass(rank, step, i, 2 * work[i], random)

        def batch(*messages: Message | None) -> list[Op]:
            some = tuple([message for message in messages if message is not None])
            return [Batch(self.pp[rank], some)] if some else []

        def receive_forward(i: int) -> Message | None:
            return None if before is None else Message(before, rank, (step, i, "f"))

        def send_forward(i: int) -> Message | None:
            return None if after is None else Message(rank, after, (step, i, "f"))

        def receive_backward(i: int) -> Message | None:
            return None if after is None else Message(after, rank, (step, i, "b"))

        def send_backward(i: int) -> Message | None:
            return None if before is None else Message(rank, before, (step, i, "b"))

        count = case.microbatches
        if case.schedule == "gpipe":
            for i in range(count):
                yield from batch(receive_forward(i))
                yield from forward(i)
                yield from batch(send_forward(i))
            for i in reversed(range(count)):
                yield from batch(receive_backward(i))
                yield from backward(i)
                yield from batch(send_backward(i))
            return
        # 1F1B as in Megatron-LM (megatron/core/pipeline_parallel/schedules.py, without interleaving).
        warm = min(case.pp - 1 - stage, count)
        for i in range(warm):
            yield from batch(receive_forward(i))
            yield from forward(i)
            yield from batch(send_forward(i))
        if warm < count:
            yield from batch(receive_forward(warm))
        for i in range(warm, count):
            yield from forward(i)
            yield from batch(send_forward(i), receive_backward(i - warm))
            yield from backward(i - warm)
            if i + 1 < count:
                yield from batch(send_backward(i - warm), receive_forward(i + 1))
            else:
                yield from batch(send_backward(i - warm))
        for i in range(count - warm, count):
            yield from batch(receive_backward(i))
            yield from backward(i)
            yield from batch(send_backward(i))
