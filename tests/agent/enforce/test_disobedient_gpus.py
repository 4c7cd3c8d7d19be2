"""Rounds over a node of which some GPUs do not do as they are told: it comes to its grant, and stays within it."""

from __future__ import annotations

from dataclasses import dataclass

from flyball_agent.enforce.decisions import Mode, SetLimit, judge, limit_cuts, limit_raises, targets_of
from flyball_agent.enforce.gpu_state import GpuState, LimitRefusal, PodName
from flyball_agent.gpu.gpu import GpuLimits, GpuReading, PowerLimitReading
from flyball_api.grant import Grant, JobGrant, OtherGpuLimits, PowerBound
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples

SMALLEST, LARGEST = 100_000, 400_000
LIMITS = GpuLimits(MilliwattsPerGpu(SMALLEST), MilliwattsPerGpu(LARGEST), MilliwattsPerGpu(LARGEST), ())
ROUND_NS, SETTLE_NS = 1_000_000_000, 2_000_000_000
ROUNDS_TO_SETTLE, ROUNDS = 30, 20


@dataclass(frozen=True)
class Board:
    """A GPU as it stands and what it is granted; `above` is what its driver enforces above any limit, in milliwatts.

    One that refuses takes no limit. One that is stuck takes them all, and enforces at least what it did at first.
    """

    requested: int
    granted: int
    above: int
    refuses: bool
    stuck: bool
    has_pod: bool

    def enforced(self, requested: int) -> int:
        """What its driver enforces where so much is requested."""
        return max(requested, self.requested if self.stuck else 0) + self.above


boards = st.builds(
    Board,
    requested=st.integers(SMALLEST, LARGEST),
    granted=st.integers(SMALLEST // 1000, LARGEST // 1000).map(lambda watts: watts * 1000),
    above=st.sampled_from([0, 0, 0, 300, 1_000, 5_000, 30_000]),
    refuses=st.sampled_from([False, False, False, True]),
    stuck=st.sampled_from([False, False, False, True]),
    has_pod=st.sampled_from([True, True, True, False]),
)


class Node:
    """GPUs that are read, cut, raised and judged once a second, as the enforcer does."""

    def __init__(self, boards: list[Board], bound_milliwatts: int) -> None:
        jobs = tuple(
            JobGrant("research", f"j{i}", f"u{i}", 1, f"p{i}", 1, MilliwattsPerGpu(board.granted), 0, 0)
            for i, board in enumerate(boards)
        )
        smallest, largest = MilliwattsPerGpu(SMALLEST), MilliwattsPerGpu(LARGEST)
        others = OtherGpuLimits(
            idle_power_limit_milliwatts=smallest,
            foreign_power_limit_milliwatts=largest,
            foreign_gpus=0,
            failsafe_power_limit_milliwatts=smallest,
        )
        self.bound = NodeMilliwatts(bound_milliwatts)
        self.grant = Grant(1, 1, 30, PowerBound(self.bound), jobs=jobs, other_gpus=others)
        self.boards = boards
        self.requested = [board.requested for board in boards]
        self.states: list[GpuState] = [
            GpuState(
                f"g{i}",
                i,
                "NVIDIA-A100",
                LIMITS,
                MilliwattsPerGpu(board.requested + board.above),
                pods=(PodName("research", f"p{i}"),) if board.has_pod else (),
            )
            for i, board in enumerate(boards)
        ]
        self._now_ns = 0

    def enforced_milliwatts(self) -> list[int]:
        return [board.enforced(requested) for board, requested in zip(self.boards, self.requested, strict=True)]

    def least_milliwatts(self) -> int:
        """What it holds at the least, whatever is asked of it."""
        return sum(board.enforced(board.requested if board.refuses else SMALLEST) for board in self.boards)

    def step(self) -> None:
        """One round."""
        self._now_ns += ROUND_NS
        for i, limit in enumerate(self._limits()):
            self.states[i] = self.states[i].read(GpuReading(limit), self._now_ns, ROUND_NS / 1e9)
        targets = targets_of(self.grant, self.states, Mode.GRANTED)
        self._set(limit_cuts(self.states, targets))
        self._read_back()
        self._set(limit_raises(self.states, targets, self.bound))
        self._read_back()
        self.states = list(judge(self.states, targets, self._now_ns, SETTLE_NS).gpus)

    def _limits(self) -> list[PowerLimitReading]:
        enforced = self.enforced_milliwatts()
        return [
            PowerLimitReading(MilliwattsPerGpu(requested), MilliwattsPerGpu(enforced[i]))
            for i, requested in enumerate(self.requested)
        ]

    def _read_back(self) -> None:
        for i, limit in enumerate(self._limits()):
            self.states[i] = self.states[i].changed(limit=limit, held_milliwatts=limit.held_milliwatts)

    def _set(self, sets: list[SetLimit]) -> None:
        for change in sets:
            i = int(change.uuid[1:])
            if self.boards[i].refuses:
                refusal = LimitRefusal(change.new_milliwatts, 1, self._now_ns)
                self.states[i] = self.states[i].changed(refusal=refusal)
            else:
                self.requested[i] = change.new_milliwatts


@settings(max_examples=examples(100))
@given(st.lists(boards, min_size=1, max_size=8), st.floats(0, 1))
def test_a_node_stays_within_its_grant_whatever_its_gpus_refuse_or_enforce(boards: list[Board], share: float) -> None:
    node = Node(boards, SMALLEST * len(boards) + round(share * (LARGEST - SMALLEST) * len(boards)))
    for _ in range(ROUNDS_TO_SETTLE):
        node.step()
    for _ in range(ROUNDS):
        node.step()
        assert sum(node.enforced_milliwatts()) <= max(node.bound, node.least_milliwatts())
