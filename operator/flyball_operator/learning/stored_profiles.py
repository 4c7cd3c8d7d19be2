"""Reads what earlier leaders have stored of jobs: every EnergyProfile of the cluster, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from flyball_api.energy.profile import EnergyProfile, read_energy_profile
from flyball_api.reading import InvalidObject
from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_kube.process.logs import get_logger
from flyball_kube.resources import ENERGY_PROFILES
from flyball_kube.session import JsonObject

logger = get_logger(__name__)

PAGE_SIZE = 500


class ProfileReader(Protocol):
    """What reading them needs of a session to the API server."""

    async def get(self, path: str, **params: str) -> JsonObject: ...


async def stored_profiles(session: ProfileReader) -> AsyncIterator[EnergyProfile]:
    """Every EnergyProfile that can be read; what the API server refuses, or cannot be read, is logged and left out."""
    params = {"limit": str(PAGE_SIZE)}
    try:
        while True:
            page = await session.get(ENERGY_PROFILES.path(), **params)
            for raw in page.get("items") or ():
                profile = _read(raw)
                if profile is not None:
                    yield profile
            if not page["metadata"].get("continue"):
                return
            params["continue"] = page["metadata"]["continue"]
    except (ApiError, ApiUnreachable) as error:
        logger.warning("EnergyProfiles cannot be read: what they hold is learned again", error=str(error))


def _read(raw: JsonObject) -> EnergyProfile | None:
    try:
        stored = read_energy_profile(raw)
    except InvalidObject as error:
        logger.warning("EnergyProfile left out: it cannot be read", error=str(error))
        return None
    for problem in stored.problems:
        logger.warning("part of an EnergyProfile left out", profile=stored.metadata.key, error=problem)
    return stored
