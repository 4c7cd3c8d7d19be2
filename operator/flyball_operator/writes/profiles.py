"""Writes what was learned into EnergyProfile objects."""

from __future__ import annotations

from collections.abc import Iterable

from flyball_operator.cluster.outcome import WriteResult, combined
from flyball_operator.learning.learner import Learner
from flyball_operator.learning.records import ProfileWrite
from flyball_operator.writes.executor import Executor


async def write_profiles(executor: Executor, learner: Learner, writes: Iterable[ProfileWrite]) -> WriteResult:
    """Write profiles side by side; raises LeadershipLost where the lease is gone."""

    async def put(write: ProfileWrite) -> WriteResult:
        result = await executor.write_profile(write.object, write.status, exists=write.exists, disowned=write.disowned)
        learner.answered(write, result)
        return result

    return combined(await executor.all([put(write) for write in writes]))
