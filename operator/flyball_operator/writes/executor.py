"""Every write that the operator makes to the API server."""

from __future__ import annotations

from collections.abc import Callable

from flyball_api.energy.profile import EnergyProfileStatus
from flyball_api.writing import to_patch
from flyball_kube.resources import (
    ENERGY_PROFILES,
    ENERGY_REPORTS,
)
from flyball_kube.session import JsonObject

from flyball_operator.cluster.outcome import WriteResult
from flyball_operator.writes.job_writes import JobWrites
from flyball_operator.writes.power_writes import PowerWrites


class Executor(JobWrites, PowerWrites):
    """All writes of one leader's term, under its epoch."""

    async def write_energy_report(
        self, day: str, body: JsonObject | None, resource_version: str, stored: Callable[[JsonObject], None]
    ) -> WriteResult:
        """Put an EnergyReport in the place of the one of that version, or make it; delete it where `body` is None.

        `stored` is called with the object that was written.
        """
        path = ENERGY_REPORTS.path(name=day)
        if body is None:
            return await self._write("energy-report", ENERGY_REPORTS, lambda: self._session.delete(path))

        async def put() -> JsonObject:
            if resource_version:
                answer = await self._session.replace(path, body)
            else:
                answer = await self._session.create(ENERGY_REPORTS.path(), body)
            stored(answer)
            return answer

        return await self._write("energy-report", ENERGY_REPORTS, put)

    async def write_profile(
        self, profile: JsonObject, status: EnergyProfileStatus, *, exists: bool, disowned: bool = False
    ) -> WriteResult:
        """Put what was learned into an EnergyProfile, made first unless it `exists`; `disowned`: it has no owner more."""
        metadata = profile["metadata"]
        if disowned:
            whole = ENERGY_PROFILES.path(metadata["namespace"], metadata["name"])
            nobody = {"metadata": {"ownerReferences": None}}
            result = await self._write("disown-profile", ENERGY_PROFILES, lambda: self._session.patch(whole, nobody))
            if not result.done:
                return result
        if not exists:
            collection = ENERGY_PROFILES.path(metadata["namespace"])
            await self._write("create-profile", ENERGY_PROFILES, lambda: self._session.create(collection, profile))
        path = ENERGY_PROFILES.path(metadata["namespace"], metadata["name"], "status")
        return await self._write(
            "profile-status", ENERGY_PROFILES, lambda: self._session.patch(path, {"status": to_patch(status)})
        )
