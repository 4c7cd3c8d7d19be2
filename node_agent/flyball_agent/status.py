"""GPUNode.status from an agent's state, and its *facts*: the same without measurements, to tell news from noise."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from flyball_agent.board import BoardState
from flyball_agent.gpu import CallTimedOut, GpuLost, GpuNotFound, ImplausibleReading, ResetRequired

if TYPE_CHECKING:
    from flyball_agent.agent import NodeAgent

MAX_MESSAGE_LENGTH = 1000
# A drift is put back in the round that finds it; people should see it for longer than that.
DRIFT_SHOWN_NS = 60 * 1_000_000_000

_READ_REASONS = {
    GpuLost: "Lost",
    ResetRequired: "ResetRequired",
    GpuNotFound: "NotFound",
    CallTimedOut: "CallTimedOut",
    ImplausibleReading: "ImplausibleReading",
}


def format_time(unix_seconds: float) -> str:
    """RFC 3339 in UTC, whole seconds, as Kubernetes writes times."""
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class StatusBuilder:
    """Builds the status of one agent; remembers when each condition changed."""

    def __init__(self, agent: NodeAgent) -> None:
        self._agent = agent
        self._since: dict[tuple[str, str], tuple[str, str]] = {}  # (object, type): (status, time)
        self._drift: tuple[int, str] | None = None

    def facts(self) -> tuple[Any, ...]:
        """Everything that is told at once when it changes."""
        agent, enforcer = self._agent, self._agent.enforcer
        if enforcer.drifted:
            self._drift = (agent.clock_ns(), next(iter(enforcer.drifted.values())))
        return (
            enforcer.driver.boot_id,
            str(enforcer.incarnation),
            enforcer.mode,
            enforcer.acknowledged,
            tuple(
                (board.uuid, board.index, board.limit, board.pods[:1], self._health(board))
                for board in enforcer.boards.values()
            ),
            tuple((job.pod_name, job.uid, job.gpus, job.ended) for job in agent.observations),
            tuple(self._conditions()),
        )

    def build(self) -> dict[str, Any]:
        """The whole status."""
        agent, enforcer = self._agent, self._agent.enforcer
        status: dict[str, Any] = {
            "bootID": enforcer.driver.boot_id,
            "driverIncarnation": str(enforcer.incarnation),
            "agentVersion": agent.version,
            "mode": str(enforcer.mode),
            "devices": [self._device(board) for board in enforcer.boards.values()],
            "jobs": [
                job.to_status(agent.attribution.pod_millijoules(job.energy_key), format_time)
                for job in agent.observations
            ],
            "conditions": [self._condition("", *condition) for condition in self._conditions()],
        }
        ack = enforcer.acknowledged
        if ack is not None:
            status["acknowledged"] = {
                "epoch": ack.epoch,
                "generation": ack.generation,
                "time": format_time(ack.wall_time),
                "limitsMilliwatts": ack.limits_milliwatts,
                "bootID": ack.boot_id,
                "driverIncarnation": ack.driver_incarnation,
            }
        return status

    def _device(self, board: BoardState) -> dict[str, Any]:
        limits, clocks = board.limits, board.limits.clocks_megahertz
        device: dict[str, Any] = {
            "uuid": board.uuid,
            "model": board.model,
            "limits": {
                "minMilliwatts": limits.min_milliwatts,
                "maxMilliwatts": limits.max_milliwatts,
                "defaultMilliwatts": limits.default_milliwatts,
            },
            "conditions": [self._condition(board.uuid, "Healthy", *self._health(board))],
        }
        if board.index >= 0:
            device["index"] = board.index
        if board.limit is not None:
            device["limits"]["requestedMilliwatts"] = board.limit.requested_milliwatts
            device["limits"]["enforcedMilliwatts"] = board.limit.enforced_milliwatts
        if clocks:
            device["clocksMegahertz"] = {"min": clocks[0], "max": clocks[-1], "step": limits.clock_step_megahertz}
        if board.pods:
            device["pod"] = {"namespace": board.pods[0].namespace, "name": board.pods[0].name}
        reading = board.reading
        if reading is not None:
            if reading.energy_millijoules is not None:
                device["energyMillijoules"] = reading.energy_millijoules
            if reading.average_power_milliwatts is not None:
                device["powerMilliwatts"] = reading.average_power_milliwatts
        return device

    def _condition(self, of: str, kind: str, status: str, reason: str, message: str) -> dict[str, str]:
        since = self._since.get((of, kind))
        if since is None or since[0] != status:
            since = (status, format_time(self._agent.wall_seconds()))
            self._since[(of, kind)] = since
        return {
            "type": kind,
            "status": status,
            "lastTransitionTime": since[1],
            "reason": reason,
            "message": message[:MAX_MESSAGE_LENGTH],
        }

    def _health(self, board: BoardState) -> tuple[str, str, str]:
        if board.error is not None:
            return "False", _READ_REASONS.get(type(board.error), "ReadFailed"), str(board.error)
        if board.set_error is not None:
            return "False", "LimitNotTaken", board.set_error
        if self._agent.enforcer.above_for_good(board):
            return "False", "LimitNotTaken", f"{board.uuid}: the enforced limit stays above the one that was set"
        if board.lock_refused is not None:
            return "True", "ClockNotTaken", board.lock_refused
        return "True", "Governed", ""

    def _conditions(self) -> list[tuple[str, str, str, str]]:
        return [("Ready", *self._ready()), ("Drifted", *self._drifted()), ("Degraded", *self._degraded())]

    def _ready(self) -> tuple[str, str, str]:
        enforcer = self._agent.enforcer
        if enforcer.spec is None:
            return "False", "NoSpec", "no spec has come yet; the GPUs stay as they are"
        ack = enforcer.acknowledged
        if ack is None or (ack.epoch, ack.generation) != enforcer.spec.pair:
            return "False", "NotAcknowledged", "the last spec is not in force on every GPU yet"
        return "True", "Serving", ""

    def _drifted(self) -> tuple[str, str, str]:
        if self._drift is not None and self._agent.clock_ns() - self._drift[0] < DRIFT_SHOWN_NS:
            return "True", "LimitChanged", f"{self._drift[1]}, and was put back"
        return "False", "AsSet", ""

    def _degraded(self) -> tuple[str, str, str]:
        agent, enforcer = self._agent, self._agent.enforcer
        if agent.round_error is not None:
            return "True", "RoundFailed", agent.round_error
        if enforcer.journal.degraded is not None:
            return "True", "JournalUnwritable", f"no limit is raised: {enforcer.journal.degraded}"
        if enforcer.invalid_spec is not None:
            return "True", "InvalidSpec", enforcer.invalid_spec
        if enforcer.stale_spec is not None:
            return "True", "StaleSpec", enforcer.stale_spec
        failed = [board for board in enforcer.boards.values() if self._health(board)[0] == "False"]
        if failed:
            _, reason, message = self._health(failed[0])
            more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
            return "True", "GpuFailed", f"{reason}: {message}{more}"
        if agent.pods_error is not None:
            return "True", "PodsUnknown", agent.pods_error
        return "False", "AsExpected", ""
