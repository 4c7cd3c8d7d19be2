"""The cut that goes before everything else of a round: what has come since the last one lowers limits at once.

A whole round first measures every GPU, which takes a driver several calls a GPU and a node that is short of processor time
all the longer. Nothing of that is needed to lower a limit that is known. So the round begins with the cuts that it would
come to anyway, and does the rest behind them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from flyball_api.grant import Grant

from flyball_agent.enforce import decisions
from flyball_agent.enforce.decisions import Mode, SetLimit, Target
from flyball_agent.enforce.gpu_state import Holders
from flyball_agent.enforce.reader import GpuReader
from flyball_agent.enforce.setter import GpuSetter
from flyball_agent.enforce.state import EnforcerState


class FirstCut:
    """Cuts by a grant, a brake or a mode that the last round did not know. `targets` are what a grant comes to now.

    `still_decided` says whether the round still goes by a grant: a newer one may come while the limits are read.
    """

    def __init__(
        self,
        state: EnforcerState,
        reader: GpuReader,
        setter: GpuSetter,
        *,
        targets: Callable[[Grant], Mapping[str, Target]],
        still_decided: Callable[[Grant], bool],
    ) -> None:
        self._state = state
        self._reader = reader
        self._setter = setter
        self._targets = targets
        self._still_decided = still_decided
        self._last: tuple[Grant | None, Mode] = (None, Mode.ADOPTING)

    async def make(self) -> Sequence[SetLimit]:
        """The sets that were not taken; the round need not ask for them again. One that was taken it may have to repeat,
        where another hand puts back what was there before.

        Only GPUs that are as the last round left them: what somebody else has set since, or a driver that was loaded
        anew, is for the whole round to find, and so is a GPU that now has its limit for another reason.
        """
        state = self._state
        grant, last = state.in_force, self._last
        self._last = grant, state.mode
        if grant is None or (grant is last[0] and state.mode is last[1]):
            return ()
        gpus = list(state.gpus.values())
        if any(gpu.holders is Holders.NOT_LISTED for gpu in gpus):
            return ()  # what one of them may keep depends on what all hold
        targets = self._targets(grant)
        cuts = [
            change
            for change in decisions.limit_cuts(gpus, targets)
            if state.gpus[change.uuid].purpose is targets[change.uuid].purpose
        ]
        if not cuts:
            return ()
        unchanged = await self._reader.unchanged([change.uuid for change in cuts])
        if not self._still_decided(grant):
            return ()
        cuts = [change for change in cuts if change.uuid in unchanged]
        await self._setter.set_limits(grant, cuts, "lower")
        # Of many agents in one process, and of what has come to this one meanwhile, no cut waits for the rest.
        await asyncio.sleep(0)
        return [change for change in cuts if state.gpus[change.uuid].ours_milliwatts != change.new_milliwatts]
