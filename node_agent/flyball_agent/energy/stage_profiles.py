"""What training processes have measured of the stages of their pipelines, until the operator has had a plan made of it.

Kept in memory alone: a process tells an agent that was started again anew.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from flyball_agent.energy.observations import InvalidReport
from flyball_agent.enforce.gpu_state import PodName

# What GPUNode.status.jobs[].stages takes: of a pod no more of its GPUs than these, and of a stage no more computations and
# clocks.
MAX_STAGES = 16
MAX_STAGE_NUMBER = 63
MAX_ROWS = 256
MAX_ROWS_BYTES = 8192
MAX_WAITING_MILLIWATTS = 10_000_000
# With the names of fields, and rows that fill what they may.
MAX_BODY_BYTES = 2 * MAX_ROWS_BYTES

_NUMBER = r"[0-9]{1,9}(\.[0-9]{1,9})?"
_ROW = re.compile(rf"[A-Za-z][A-Za-z0-9_-]{{0,31}},[0-9]{{1,5}},{_NUMBER},{_NUMBER}", re.ASCII)


@dataclass(frozen=True, slots=True)
class StageProfile:
    """One stage's computations, a line for each at each clock (instruction, megahertz, seconds, joules), and what its GPU
    draws while it waits."""

    stage: int
    waiting_milliwatts: int
    rows: str


def parse_stage_profile(raw: object) -> StageProfile:
    """Read the body of `POST /v1/profile`. Raises InvalidReport."""
    if not isinstance(raw, Mapping):
        raise InvalidReport("the body is not a JSON object")

    def count(name: str, most: int) -> int:
        value = raw.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise InvalidReport(f"{name}: {value!r:.40} is not an integer within 0..{most}")
        return value

    rows = raw.get("rows")
    if not isinstance(rows, str) or not 0 < len(rows) <= MAX_ROWS_BYTES:
        raise InvalidReport(f"rows: lines of text are wanted, {MAX_ROWS_BYTES} characters of them at the most")
    lines = rows.removesuffix("\n").split("\n")
    if len(lines) > MAX_ROWS:
        raise InvalidReport(f"rows: {len(lines)} lines are more than the {MAX_ROWS} that are taken")
    for number, line in enumerate(lines, 1):
        if _ROW.fullmatch(line) is None:
            raise InvalidReport(f"rows: line {number} is not like forward,1410,0.15,27.5: {line!r:.60}")
    return StageProfile(count("stage", MAX_STAGE_NUMBER), count("waitingMilliwatts", MAX_WAITING_MILLIWATTS), rows)


class StageProfiles:
    """The stages of this node's pods, the last profile of each."""

    def __init__(self) -> None:
        self._of_pods: dict[PodName, dict[int, StageProfile]] = {}

    def take(self, pod: PodName, gpus: int, profile: StageProfile) -> None:
        """Keep a stage of a pod that holds so many GPUs. Raises InvalidReport where it has told of one for each already.

        The status of a node must stay small enough to be stored, whatever its pods say: its acknowledgements are in it.
        """
        stages, most = self._of_pods.get(pod, {}), min(gpus, MAX_STAGES)
        if profile.stage not in stages and len(stages) >= most:
            held = f"{gpus} GPU{'' if gpus == 1 else 's'} that the pod holds"
            of = held if most == gpus else f"{most} that are taken of a pod"
            raise InvalidReport(f"stage: {profile.stage} is one more than the {of}")
        self._of_pods[pod] = {**stages, profile.stage: profile}

    def of(self, pod: PodName) -> tuple[StageProfile, ...]:
        """In the order of the stages."""
        stages = self._of_pods.get(pod, {})
        return tuple(stages[stage] for stage in sorted(stages))

    def keep_only(self, pods: Collection[PodName]) -> None:
        """Forget the stages of all other pods."""
        for pod in self._of_pods.keys() - set(pods):
            del self._of_pods[pod]
