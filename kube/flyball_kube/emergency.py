"""The emergency lever: one write that takes everything under a cap to its smallest limits, with or without an operator."""

from __future__ import annotations

from flyball_api.power_brake import (
    MAX_REASON_LENGTH,
    EmergencyState,
    PowerBrake,
    PowerBrakeSpec,
    power_brake_object,
    read_power_brake,
)

from flyball_kube.errors import ApiError
from flyball_kube.resources import POWER_BRAKES, POWER_CAPS
from flyball_kube.session import ApiSession, get_or_none

# The operator may write the same brake at the same moment; each try is decided on what then stands.
ATTEMPTS = 10


class NoSuchEmergency(Exception):
    """There is nothing to declare an emergency for, or none to end."""


async def declare_emergency(session: ApiSession, cap: str, reason: str = "") -> PowerBrake:
    """Hold every GPU under the cap at its smallest limit, from now until `end_emergency`; the brake as it stands then.

    Agents act on it by themselves. Needs the verb `emergency` on the PowerBrake of that name. Raises NoSuchEmergency where
    there is no such cap, ValueError for a reason that is too long, and ApiError or ApiUnreachable.
    """
    if len(reason) > MAX_REASON_LENGTH:
        raise ValueError(f"a reason of {len(reason)} characters; at most {MAX_REASON_LENGTH} fit")
    return await _write(session, cap, "Active", reason)


async def end_emergency(session: ApiSession, cap: str) -> PowerBrake:
    """End the cap's emergency; limits return by the operator's next grants. Raises as `declare_emergency`."""
    return await _write(session, cap, "Ended", "")


async def _write(session: ApiSession, cap: str, state: EmergencyState, reason: str) -> PowerBrake:
    for attempt in range(1, ATTEMPTS + 1):
        before = await _read(session, cap)
        if before is None:
            await _check(session, cap, state)
        elif state == "Ended" and not before.active:
            raise NoSuchEmergency(f"no emergency is declared for the cap {cap}")
        elif state == "Active" and before.active and (before.spec.reason or "") == reason:
            return before
        epoch, sequence = (0, 0) if before is None else before.version
        kept_reason = before.spec.reason if before is not None and state == "Ended" else reason
        spec = PowerBrakeSpec(epoch, sequence + 1, 0, state, kept_reason or None)
        body = power_brake_object(cap, spec, "" if before is None else before.metadata.resource_version)
        try:
            if before is None:
                return read_power_brake(await session.create(POWER_BRAKES.path(), body))
            return read_power_brake(await session.replace(POWER_BRAKES.path(name=cap), body))
        except ApiError as error:
            if not error.conflict or attempt == ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


async def _read(session: ApiSession, cap: str) -> PowerBrake | None:
    raw = await get_or_none(session, POWER_BRAKES.path(name=cap))
    return None if raw is None else read_power_brake(raw)


async def _check(session: ApiSession, cap: str, state: EmergencyState) -> None:
    if state == "Ended":
        raise NoSuchEmergency(f"no emergency is declared for the cap {cap}")
    try:
        await session.get(POWER_CAPS.path(name=cap))
    except ApiError as error:
        if error.not_found:
            raise NoSuchEmergency(f"there is no PowerCap {cap} (kubectl get powercaps)") from error
        # Who may declare an emergency need not be allowed to read caps.
