"""The PowerBrakes of the cluster, watched: whatever lowers a cap's nodes at once reaches this process' agents by them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from flyball_api.power_brake import PowerBrake, read_power_brake
from flyball_kube.informer import Informer
from flyball_kube.resources import POWER_BRAKES
from flyball_kube.session import ApiSession


class BrakeWatch:
    """Calls its listeners with every PowerBrake, by the cap's name, after the first list and after each change.

    One that cannot be read counts as none: the grants that follow it lower the node in any case.
    """

    def __init__(self, session: ApiSession) -> None:
        self._listeners: list[Callable[[Mapping[str, PowerBrake]], None]] = []
        self.informer: Informer[PowerBrake] = Informer(
            session, POWER_BRAKES, read_power_brake, on_change=lambda key: self._changed()
        )

    def listen(self, listener: Callable[[Mapping[str, PowerBrake]], None]) -> None:
        """Call `listener` from now on."""
        self._listeners.append(listener)

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.informer.run())
            await self.informer.wait_synced()
            self._changed()

    async def reread(self) -> None:
        """See every PowerBrake at the API server anew, and hand them on: for a governor that has just started."""
        await self.informer.refresh()
        self._changed()

    def _changed(self) -> None:
        if not self.informer.synced:
            return  # half a list must not be taken for all of it
        seen = dict(self.informer.items())
        for listener in self._listeners:
            listener(seen)
