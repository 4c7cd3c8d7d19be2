"""PowerBrakes as the agent follows them, pure: which ones lower the grant, by how much, and when each is forgotten.

A brake lowers the grant in force; nothing here can raise it. Of several versions of one brake the smallest share counts, so
that it does not matter in which order, how often or how late they are seen. A brake that is followed is forgotten by a
newer grant that was made with it, and by nothing else: what the agent has acknowledged under it stays true until then,
also where its journal has forgotten the brake and the brake itself is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flyball_api.gpu_node import Acknowledgement
from flyball_api.grant import BrakeVersion, Grant
from flyball_api.power_brake import PowerBrake
from flyball_api.values.units import NodeMilliwatts, of_gpus
from msgspec.structs import replace

from flyball_agent.enforce.decisions import Target
from flyball_agent.enforce.gpu_state import GpuState
from flyball_agent.enforce.records import FollowedBrake

Followed = Mapping[str, FollowedBrake]  # by the cap's name
Seen = Mapping[str, PowerBrake]  # by the cap's name, as the API server last had them
# What was acknowledged under brakes that nobody knows any more is followed as one of no cap: no grant is made with it, and
# so the next one ends it.
NO_CAP = ""


def with_seen(followed: Followed, grant: Grant, seen: Seen) -> Followed:
    """What to follow under `grant` once the brakes are as `seen`.

    A brake counts where its cap is one of the grant's, and it is newer than the one that the grant was made with; an
    emergency that is Active counts whatever its version. What is followed already is followed on.
    """
    result = dict(followed)
    for cap in grant.caps:
        brake = seen.get(cap.name)
        if brake is None or not (brake.active or brake.version > cap.brake):
            continue
        found = FollowedBrake(cap.name, *brake.version, brake.spec.kept_millionths, brake.everything)
        before = result.get(cap.name)
        result[cap.name] = found if before is None else _lower_of(before, found)
    return result


def under_new_grant(followed: Followed, grant: Grant, seen: Seen | None) -> Followed:
    """What is still to be followed once `grant`, newer than the last one, is accepted; `seen`: None before the first list.

    An emergency outlasts every grant until it is seen to have ended.
    """
    left = {}
    for cap in grant.caps:
        brake = followed.get(cap.name)
        if brake is None:
            continue
        goes_on = brake.everything and (seen is None or (cap.name in seen and seen[cap.name].active))
        if goes_on or BrakeVersion(brake.epoch, brake.sequence) > cap.brake:
            left[cap.name] = brake
    return left if seen is None else with_seen(left, grant, seen)


def with_acknowledged(followed: Followed, grant: Grant, acknowledged: Iterable[Acknowledgement]) -> Followed:
    """What to follow under `grant` so that it comes to no more than what was acknowledged of it, by whichever agent."""
    bounds = [each.bound_milliwatts for each in acknowledged if each.is_of(grant) and each.bound_milliwatts is not None]
    if not bounds or min(bounds) >= braked(grant, followed).bound.limit_milliwatts:
        return followed
    least = grant.lowered(0).bound.limit_milliwatts
    return {**followed, NO_CAP: FollowedBrake(NO_CAP, 0, 0, grant.kept_within(min(bounds)), min(bounds) < least)}


def _lower_of(before: FollowedBrake, found: FollowedBrake) -> FollowedBrake:
    newest = max(before, found, key=lambda brake: (brake.epoch, brake.sequence))
    return replace(
        newest,
        kept_millionths=min(before.kept_millionths, found.kept_millionths),
        everything=before.everything or found.everything,
    )


def braked(grant: Grant, followed: Followed) -> Grant:
    """The grant as the brakes leave it: of several over one node the lowest share counts."""
    if not followed:
        return grant
    return grant.lowered(min(brake.kept_millionths for brake in followed.values()))


def everything_lowered(followed: Followed) -> bool:
    """Whether all GPUs go to their smallest limits, those of pods that are no jobs of ours included."""
    return any(brake.everything for brake in followed.values())


def lowest_targets(targets: Mapping[str, Target], gpus: Iterable[GpuState]) -> dict[str, Target]:
    """`targets` with every GPU at its smallest limit, also those that no grant touches."""
    smallest = {gpu.uuid: gpu.limits.min_milliwatts for gpu in gpus}
    return {uuid: Target(uuid, target.purpose, smallest[uuid], target.lock) for uuid, target in targets.items()}


def lowest_bound(gpus: Iterable[GpuState]) -> NodeMilliwatts:
    """The most that the GPUs' limits may add up to with every one at its smallest; a lost one may be at its default."""
    return of_gpus(
        gpu.limits.min_milliwatts if gpu.usable else max(gpu.held_milliwatts, gpu.limits.default_milliwatts)
        for gpu in gpus
    )
