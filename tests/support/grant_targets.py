"""What nodes should be granted and what they are granted, in few milliwatts, for tests of what is decided between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flyball_api.grant import Grant, OtherGpuLimits
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts
from flyball_operator.power.bound import CapBudget, JumpReserve, NodePower
from flyball_operator.power.grants.admission import GrantTarget
from msgspec.structs import replace

from tests.support.operator_objects import bound, grant, job_grant

FLOOR = 100  # the smallest limit of each GPU


def want(
    node: str,
    *limits: int,
    rest: int = 0,
    expected: tuple[int, ...] | None = None,
    clock: int = 1410,
    other_gpus: OtherGpuLimits | None = None,
    gpus: int = 1,
) -> GrantTarget:
    """One job of so many GPUs for each limit, its pods `<node>-0`, `<node>-1`, ...; `expected` is of one GPU."""
    jobs = tuple(job_grant(f"{node}-{index}", limit, gpus, clock=clock) for index, limit in enumerate(limits))
    draws = limits if expected is None else expected
    holds = tuple(bound(limit * gpus, draw * gpus) for limit, draw in zip(limits, draws, strict=True))
    others = other_gpus or OtherGpuLimits()
    return GrantTarget(node, others, 60, jobs, holds, bound(rest), MilliwattsPerGpu(FLOOR))


def cap(
    budget: int,
    *nodes: str,
    name: str = "row",
    expected: bool = False,
    reserve: int = 0,
    largest: Mapping[str, int] | None = None,
) -> CapBudget:
    """A cap's budget; in `reserve` so many of the nodes, each up to its `largest`."""
    held = JumpReserve(reserve, {name: NodeMilliwatts(each) for name, each in (largest or {}).items()})
    return CapBudget(name, frozenset(nodes), NodeMilliwatts(budget), expected, reserve=held)


def standing(item: GrantTarget, **keywords: Any) -> Grant:
    """The grant that says what `item` wants."""
    given_grant = grant(
        item.bound.limit_milliwatts, expected=item.bound.expected_milliwatts, jobs=item.jobs, **keywords
    )
    return replace(given_grant, other_gpus=item.other_gpus)


def holding(item: GrantTarget, committed: int | None = None, **keywords: Any) -> NodePower:
    """A node at this grant, acknowledged (or at `committed`, while it is not)."""
    given_grant = standing(item, **keywords)
    hold = given_grant.bound if committed is None else given_grant.bound | bound(committed)
    return NodePower(given_grant, hold, given_grant.version)
