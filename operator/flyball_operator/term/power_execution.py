"""Executes what the power controller decides: each write in the background, its answer handed back to the controller."""

from __future__ import annotations

from collections.abc import Mapping

from flyball_api.gpu_node import GpuNode
from flyball_api.values.units import MILLIWATTS_PER_WATT
from flyball_kube.process.logs import get_logger

from flyball_operator.cluster.outcome import WriteResult
from flyball_operator.power.caps.memberships import LabelSync
from flyball_operator.power.controller import PowerController
from flyball_operator.power.cycle import Answered, BrakeAnswered, PowerInstructions, SendGrant
from flyball_operator.power.grants.brakes import SendBrake
from flyball_operator.power.holds import HoldChange
from flyball_operator.power.observing import ObservingController
from flyball_operator.report.reporter import Reporter
from flyball_operator.writes.background import Background
from flyball_operator.writes.lost_answers import LostAnswers
from flyball_operator.writes.power_writes import PowerWrites

logger = get_logger(__name__)

# Labels and finalizers may change on a thousand nodes at once, and the next cut must not queue behind them.
HOUSEKEEPING_AT_ONCE = 16


class PowerExecution:
    """Starts the writes of one leader's instructions: all brakes and grants first, then a few of what can wait."""

    def __init__(
        self,
        power: PowerController | ObservingController,
        executor: PowerWrites,
        reporter: Reporter,
        background: Background,
    ) -> None:
        self._power = power
        self._executor = executor
        self._reporter = reporter
        self._background = background
        self._lost_answers = LostAnswers()

    def give_up_lost(self, gpu_nodes: Mapping[str, GpuNode], monotonic: float) -> None:
        """Wait no longer for answers to grants of which the GPUNodes show that they are over."""
        for name in self._lost_answers.lost(gpu_nodes, monotonic):
            self._background.give_up(("grant", name))

    def next_seconds(self, gpu_nodes: Mapping[str, GpuNode], monotonic: float) -> float:
        """Seconds until there is another one to give up; infinite where none is in sight."""
        return self._lost_answers.next_seconds(gpu_nodes, monotonic)

    def start(self, instructions: PowerInstructions, monotonic: float) -> None:
        """Start what a cycle has decided on nodes and caps, but for the statuses of caps."""
        for brake in instructions.brakes:
            self._send_brake(brake)
        for send in instructions.sends:
            self._send_grant(send, monotonic)
        room = HOUSEKEEPING_AT_ONCE - self._background.under_way("labels", "hold")
        for sync in instructions.label_syncs:
            if room > 0 and not self._background.busy(("labels", sync.node.name)):
                self._sync_labels(sync)
                room -= 1
        for change in instructions.holds:
            # Never beside another write of the same GPUNode, of which only one would be taken: it could be a cut.
            busy = any(self._background.busy((kind, change.item.name)) for kind in ("grant", "labels", "hold"))
            if room > 0 and not busy:
                self._write_hold(change)
                room -= 1
        for closed, infos in ((True, instructions.taint), (False, instructions.untaint)):
            for info in infos:
                if not self._background.busy(("taint", info.name)):
                    setting = self._executor.set_startup_taint(info, closed=closed)
                    self._background.start(("taint", info.name), setting)

    def _send_grant(self, send: SendGrant, monotonic: float) -> None:
        name, grant, gpu_node = send.node.name, send.grant, send.node.gpu_node
        self._lost_answers.sent(name, "" if gpu_node is None else gpu_node.metadata.resource_version, monotonic)
        logger.info(
            "grant",
            node=name,
            epoch=grant.epoch,
            generation=grant.generation,
            grant_watts=grant.bound.limit_milliwatts / MILLIWATTS_PER_WATT,
            committed_watts=grant.committed.limit_milliwatts / MILLIWATTS_PER_WATT,
            reason="waiting for freed watts" if send.waits else "as planned",
        )
        self._background.start(
            ("grant", name),
            self._executor.write_grant(send.node, grant),
            lambda result: self._grant_answered(send, result),
        )

    def _sync_labels(self, sync: LabelSync) -> None:
        name = sync.node.name
        logger.info(
            "labels",
            node=name,
            former=len(sync.former_labels),
            left=list(sync.left),
            reason="by somebody's word" if sync.by_annotation else "its Node's labels changed",
        )
        self._background.start(
            ("labels", name),
            self._executor.sync_labels(sync),
            lambda result: self._reporter.announce_labels(sync) if result.done else None,
        )

    def _write_hold(self, change: HoldChange) -> None:
        name, kind = change.item.name, type(change.item).__name__
        logger.info("finalizer", object=name, kind=kind, action=change.action.value)
        self._background.start(
            ("hold", name),
            self._executor.write_hold(change),
            lambda result: self._reporter.announce_hold(change) if result.done else None,
        )

    def _send_brake(self, send: SendBrake) -> None:
        spec = send.spec
        logger.info(
            "brake", cap=send.cap, epoch=spec.epoch, sequence=spec.sequence, kept_millionths=spec.kept_millionths
        )
        self._background.start(
            ("brake", send.cap),
            self._executor.write_brake(send),
            lambda result: self._brake_answered(send.cap, result),
        )

    def _brake_answered(self, cap: str, result: WriteResult) -> None:
        self._power.handle_brake(BrakeAnswered(cap, result.outcome))
        if not result.done:
            self._background.wake()  # the grants that a cut needs then must not wait for the next try

    def _grant_answered(self, send: SendGrant, result: WriteResult) -> None:
        self._lost_answers.answered(send.node.name)
        invalid = send.grant if result.invalid else None
        if self._power.handle(Answered(send.node.name, result.outcome, invalid)):
            self._reporter.announce_refused_grant(send.node, result.invalid)
            self._background.wake()  # a cut must not wait for the next try
