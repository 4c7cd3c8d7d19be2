"""Which pods outside Flyball may draw less than their GPUs could by default: for their owners, Events are all there is.

There is one when a pod is limited, when it is limited much further, and when its GPUs have their default limits again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from flyball_api.values.units import MILLIWATTS_PER_WATT, MilliwattsPerGpu
from flyball_api.workloads import PodView

from flyball_operator.power.nodes.info import NodeInfo
from flyball_operator.power.nodes.reservations import NO_RULES, NodeRules, foreign_gpu_milliwatts
from flyball_operator.report.announcements.announcement import Announcement
from flyball_operator.report.events import Regarding

# Shares move with every job that comes and goes: so much less, of the default limit, is worth another Event.
FURTHER_PERMILLE = 100


class _Limit(NamedTuple):
    """What each GPU of a pod may draw, and what it could by default."""

    allowed: MilliwattsPerGpu
    default: MilliwattsPerGpu

    @property
    def limited(self) -> bool:
        return self.allowed < self.default

    def much_below(self, other: _Limit) -> bool:
        return (other.allowed - self.allowed) * 1000 >= FURTHER_PERMILLE * self.default


class LimitedPods:
    """Follows what foreign pods may draw; of those that a new leader finds limited there has been an Event."""

    def __init__(self) -> None:
        self._announced: dict[str, _Limit] | None = None  # by the pod's UID: to what it was limited by its last Event

    def update(
        self,
        pods: Iterable[PodView],
        nodes: Mapping[str, NodeInfo],
        rules: Mapping[str, NodeRules],
        caps_over: Mapping[str, Sequence[str]],
        most: int,
    ) -> list[tuple[Regarding, Announcement]]:
        """Take in what stands, and return the Events that follow, no more than `most`: the others do the next time.

        `caps_over` names the caps over each node.
        """
        by_name = {(pod.namespace, pod.name): pod for pod in pods if not pod.job_uid}
        before, self._announced = self._announced, {}
        found: list[tuple[Regarding, Announcement]] = []
        for node, info in nodes.items():
            for foreign in info.foreign_pods:
                pod = by_name.get((foreign.namespace, foreign.name))
                if pod is None:
                    continue
                rule = rules.get(node, NO_RULES)
                now = _Limit(foreign_gpu_milliwatts(info, rule, foreign), info.default_limit_milliwatts)
                last = None if before is None else before.get(pod.uid)
                if before is None or (last is not None and now.limited and not now.much_below(last)):
                    if now.limited:
                        self._announced[pod.uid] = last or now
                    continue
                if not now.limited and last is None:
                    continue
                if len(found) >= most:
                    if last is not None:
                        self._announced[pod.uid] = last
                    continue
                if now.limited:
                    self._announced[pod.uid] = now
                    announcement = _limited(now, foreign.gpus, caps_over.get(node, ()), in_emergency=rule.emergency)
                else:
                    note = f"{_each(foreign.gpus)} may draw {_watts(now.default)} again, as by default"
                    announcement = Announcement("PowerLimitLifted", note, "Limit")
                found.append((Regarding("v1", "Pod", pod.name, pod.uid, pod.namespace), announcement))
        return found


def _limited(limit: _Limit, gpus: int, caps: Sequence[str], *, in_emergency: bool) -> Announcement:
    one = len(caps) == 1
    under = f"PowerCap{'' if one else 's'} {', '.join(sorted(caps))}"
    if in_emergency:
        why = f"there is an emergency under {under}"
    else:
        why = f"it is under {under}, which limit{'s' if one else ''} pods outside Flyball, too"
    note = f"{_each(gpus)} may draw {_watts(limit.allowed)}, by default {_watts(limit.default)}: {why}"
    return Announcement("PowerLimited", note, "Limit")


def _each(gpus: int) -> str:
    return "its GPU" if gpus == 1 else f"each of its {gpus} GPUs"


def _watts(milliwatts: MilliwattsPerGpu) -> str:
    return f"{milliwatts // MILLIWATTS_PER_WATT} W"
