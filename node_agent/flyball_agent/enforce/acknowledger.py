"""What is acknowledged: that the GPUs hold no more than a grant allows, as read back and synced to the journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from flyball_api.gpu_node import Acknowledgement
from flyball_api.grant import Grant
from flyball_api.values.times import whole_second
from flyball_api.values.units import NodeMilliwatts
from flyball_kube.process.logs import get_logger

from flyball_agent.clock import NANOSECONDS
from flyball_agent.enforce import decisions
from flyball_agent.enforce.brakes import everything_lowered, lowest_bound
from flyball_agent.enforce.decisions import Target
from flyball_agent.enforce.journal import Journal, JournalError
from flyball_agent.enforce.state import EnforcerState


class Acknowledger:
    """Judges how the GPUs stand at the end of a round, and acknowledges the grant once that is so.

    `still_decided` says whether the round still goes by a grant: a newer one may come while the disk is busy.
    """

    def __init__(
        self,
        state: EnforcerState,
        journal: Journal,
        *,
        still_decided: Callable[[Grant], bool],
        clock_ns: Callable[[], int],
        wall_seconds: Callable[[], float],
        settle_seconds: float,
        node: str,
    ) -> None:
        self._log = get_logger(__name__, node=node)
        self._state = state
        self._journal = journal
        self._still_decided = still_decided
        self._clock_ns = clock_ns
        self._wall_seconds = wall_seconds
        self._settle_ns = round(settle_seconds * NANOSECONDS)

    async def judge(self, targets: Mapping[str, Target]) -> None:
        """Acknowledge what holds; keep looking soon while a limit settles."""
        state = self._state
        judgement = decisions.judge(list(state.gpus.values()), targets, self._clock_ns(), self._settle_ns)
        for gpu in judgement.gpus:
            state.put(gpu)
        state.settling = judgement.settling
        grant = state.in_force
        if grant is None or not state.confirmed or not any(gpu.usable for gpu in judgement.gpus):
            return
        version, session, last = grant.version, state.session, state.acknowledged
        total, bound = state.held_milliwatts, self._bound_milliwatts(grant)
        if not decisions.acknowledgement_due(last, version, session, total, bound, judgement.may_acknowledge):
            return
        if last is None or (last.version, last.session, last.bound_milliwatts) != (version, session, bound):
            try:
                await self._journal.sync()
            except JournalError:
                return  # a restart would not know what is promised here
            if not self._still_decided(grant):
                return
        state.acknowledged = Acknowledgement(
            epoch=version.epoch,
            generation=version.generation,
            limits_milliwatts=total,
            boot_id=session.boot_id,
            driver_load=session.driver_load,
            time=whole_second(datetime.fromtimestamp(self._wall_seconds(), UTC)),
            bound_milliwatts=bound,
            digest=grant.digest,
            boottime_nanoseconds=state.looked_ns or 0,
        )
        self._log.info(
            "acknowledged",
            epoch=version.epoch,
            generation=version.generation,
            limits_milliwatts=total,
            bound_milliwatts=bound,
            mode=str(state.mode),
        )

    def _bound_milliwatts(self, grant: Grant) -> NodeMilliwatts:
        """The most that limits may come to until a later grant."""
        bound = grant.bound.limit_milliwatts
        lowest = everything_lowered(self._state.brakes)
        return min(bound, lowest_bound(self._state.gpus.values())) if lowest else bound
