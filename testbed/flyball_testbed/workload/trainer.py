"""One simulated training incarnation: a gang of pods that computes at the pace of its slowest GPU.

waiting (for every pod of the gang) -> restoring (its checkpoint) -> training -> succeeded
                                                                      |-> saving (when any pod is deleted)    -> stopped
                                                                      |-> failed (a GPU is lost)
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from flyball_api.energy_aware_job import Training
from flyball_simulated_gpu.device import DeviceFault
from flyball_simulated_gpu.shared import SimulatedDevice
from flyball_simulator.measured.iterations import iteration
from flyball_simulator.measured.throughputs import MODEL_CLASSES, ModelClass, model_class

from flyball_testbed.workload.pods import (
    GLOBAL_BATCH_VARIABLE,
    ITERATIONS_VARIABLE,
    MODEL_CLASS_VARIABLE,
    WORLD_SIZE_VARIABLE,
)

# A change of activity below this moves a GPU's power by under a tenth of a percent: not worth a write.
ACTIVITY_STEP = 0.001
DEFAULT_MODEL_CLASS = "resnet50"
ENDLESS_ITERATIONS = 10**12


@dataclass(frozen=True, slots=True)
class TrainingTask:
    """What is to be trained: read from the environment of the pods."""

    model: ModelClass
    global_batch_size: int
    iterations: int
    world_size: int

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> TrainingTask | None:
        """The task; None for a pod that is no simulated training. Raises ValueError, naming the variable."""
        if MODEL_CLASS_VARIABLE not in environment:
            return None
        numbers = []
        for name in (GLOBAL_BATCH_VARIABLE, ITERATIONS_VARIABLE, WORLD_SIZE_VARIABLE):
            value = environment.get(name, "")
            if not value.isdecimal() or int(value) < 1:
                raise ValueError(f"environment variable {name}={value!r} is not a whole number of 1 or more")
            numbers.append(int(value))
        return cls(model_class(environment[MODEL_CLASS_VARIABLE]), *numbers)

    @classmethod
    def of_job(cls, training: Training, environment: Mapping[str, str]) -> TrainingTask | None:
        """What the job says that it trains, for pods that were not written for the simulation; one of a class that was
        never measured trains like `DEFAULT_MODEL_CLASS`. None where the pods do not say how many GPUs there are."""
        world_size = environment.get(WORLD_SIZE_VARIABLE, "")
        if not world_size.isdecimal() or int(world_size) < 1:
            return None
        model = MODEL_CLASSES.get(training.model_class) or model_class(DEFAULT_MODEL_CLASS)
        return cls(model, training.global_batch_size, training.iterations or ENDLESS_ITERATIONS, int(world_size))


class Phase(StrEnum):
    WAITING = "waiting"
    RESTORING = "restoring"
    TRAINING = "training"
    SAVING = "saving"
    STOPPED = "stopped"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True)
class Timing:
    """How long a trainer takes for what is not training, in seconds."""

    restore_seconds: float = 0.5
    save_seconds: float = 0.5
    checkpoint_interval_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a rank reports to the node agent; the window lies between two ends of iterations."""

    iterations: int
    window_iterations: int
    window_seconds: float
    local_batch_size: int


class Checkpoint:
    """A job's checkpoint on the (simulated) shared volume: written whole, and only read by the job that wrote it."""

    def __init__(self, directory: Path, namespace: str, job_name: str, job_uid: str) -> None:
        self._path = directory / namespace / f"{job_name}.json"
        self._job_uid = job_uid

    def load(self) -> int:
        """Iterations done; 0 where there is no checkpoint of this job."""
        try:
            saved = json.loads(self._path.read_text())
        except FileNotFoundError:
            return 0
        return int(saved["iterations"]) if saved["jobUid"] == self._job_uid else 0

    def save(self, iterations: int) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        temporary.write_text(json.dumps({"jobUid": self._job_uid, "iterations": iterations}))
        temporary.rename(self._path)


class Trainer:
    """The training processes of one incarnation. Times are seconds of any monotonic clock.

    `join` each pod with its GPUs once it runs, `tick` often, `stop` when a pod is being deleted. `noise` multiplies the
    time of an iteration. `progress` is given by a restarted host that has seen this incarnation train before.
    """

    def __init__(
        self, task: TrainingTask, checkpoint: Checkpoint, timing: Timing, noise: float, progress: float | None = None
    ) -> None:
        self.task = task
        self.phase = Phase.WAITING
        self.failure = ""
        self._checkpoint = checkpoint
        self._timing = timing
        self._noise = noise
        self._adopted = progress
        self._members: dict[str, tuple[str, list[SimulatedDevice]]] = {}
        self._devices: list[SimulatedDevice] = []
        self._nodes = 1
        self._progress = 0.0
        self._ticked_at = 0.0
        self._phase_ends_at = 0.0
        self._saved_at = 0.0
        self._last_end: tuple[int, float] = (0, 0.0)  # the last iteration reported, and when it ended
        self._iteration_seconds = 0.0

    @property
    def progress(self) -> float:
        """Iterations done by all incarnations of the job, with the fraction of the one that is being computed."""
        return self._progress

    def join(self, pod_uid: str, node: str, devices: list[SimulatedDevice]) -> None:
        """A pod of the gang runs and has these GPUs; a second call for the same pod changes nothing."""
        if self.phase is Phase.WAITING:
            self._members[pod_uid] = (node, devices)

    def stop(self, now: float) -> None:
        """SIGTERM reached a rank, or it vanished: the others cannot go on; save and leave."""
        if self.phase is Phase.TRAINING:
            self._rest()
            self.phase, self._phase_ends_at = Phase.SAVING, now + self._timing.save_seconds
        elif self.phase in (Phase.WAITING, Phase.RESTORING):
            if self._adopted is not None:
                self._checkpoint.save(math.floor(self._adopted))
            self.phase = Phase.STOPPED

    def tick(self, now: float) -> None:
        """Let the processes run up to now."""
        if self.phase is Phase.WAITING:
            devices = [device for _, owned in self._members.values() for device in owned]
            if len(devices) >= self.task.world_size:
                self._start(now, devices)
        elif self.phase is Phase.RESTORING and now >= self._phase_ends_at:
            self._progress = float(self._checkpoint.load())
            self._begin(now)
        elif self.phase is Phase.TRAINING:
            self._train(now)
        elif self.phase is Phase.SAVING and now >= self._phase_ends_at:
            self._checkpoint.save(math.floor(self._progress))
            self.phase = Phase.STOPPED

    def report(self) -> StepReport | None:
        """What happened since the last call of it that had something to say; None where no iteration has ended."""
        done = math.floor(self._progress)
        reported, reported_at = self._last_end
        if done <= reported or self._iteration_seconds == 0.0:
            return None
        ended_at = self._ticked_at - (self._progress - done) * self._iteration_seconds
        self._last_end = (done, ended_at)
        local_batch = -(-self.task.global_batch_size // len(self._devices))
        return StepReport(done, done - reported, max(ended_at - reported_at, 1e-6), local_batch)

    def _start(self, now: float, devices: list[SimulatedDevice]) -> None:
        self._devices = devices
        self._nodes = len({node for node, _ in self._members.values()})
        if self._adopted is None:
            self.phase, self._phase_ends_at = Phase.RESTORING, now + self._timing.restore_seconds
        else:
            self._progress = self._adopted
            self._begin(now)

    def _begin(self, now: float) -> None:
        self.phase = Phase.TRAINING
        self._ticked_at = self._saved_at = now
        self._train(now)

    def _train(self, now: float) -> None:
        task = self.task
        states = [device.read() for device in self._devices]
        computing = self._iteration_seconds > 0.0
        for device, state in zip(self._devices, states, strict=True):
            if device.flags & DeviceFault.LOST:
                self._fail(f"CUDA error: {device.uuid} has fallen off the bus")
                return
            if computing and state.activity == 0.0:
                self._fail(f"CUDA error: the driver of {device.uuid} was reloaded under its processes")
                return
        # Before the first kernel the GPUs' clocks say nothing; what their limits allow shows at the next tick.
        slowest = 1.0
        if computing:
            slowest = min(
                state.sm_clock_megahertz / device.constants.clock_max_megahertz
                for device, state in zip(self._devices, states, strict=True)
            )
        step = iteration(task.model, len(states), self._nodes, task.global_batch_size, slowest, self._noise)
        if computing:
            self._progress += (now - self._ticked_at) / step.seconds
        else:
            done = math.floor(self._progress)
            self._last_end = (done, now - (self._progress - done) * step.seconds)
        self._iteration_seconds = step.seconds
        self._ticked_at = now
        if self._progress >= task.iterations:
            self._ticked_at -= (self._progress - task.iterations) * step.seconds  # when the last one really ended
            self._progress = float(task.iterations)
            self._rest()
            self._checkpoint.save(task.iterations)
            self.phase = Phase.SUCCEEDED
            return
        for device, state in zip(self._devices, states, strict=True):
            if abs(step.activity - state.activity) >= ACTIVITY_STEP:
                device.set_activity(step.activity)
        if now - self._saved_at >= self._timing.checkpoint_interval_seconds:
            self._checkpoint.save(math.floor(self._progress))
            self._saved_at = now

    def _fail(self, why: str) -> None:
        self._rest()
        self.failure, self.phase = why, Phase.FAILED

    def _rest(self) -> None:
        for device in self._devices:
            device.set_activity(0.0)
