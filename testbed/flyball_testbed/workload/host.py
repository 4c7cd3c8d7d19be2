"""The workload host: kubelet device manager, container runtime and training processes of every simulated node.

A process of its own (`python -m flyball_testbed.workload.host`), so that killing the operator or an agent leaves
training alone, as it would be. It watches pods, gives them GPUs, trains (`trainer`), and moves pods on by the
annotations that the nodes' stages wait for (`stages`). What it must know after a restart is in files: who holds which
GPUs beside the hardware, how far each incarnation is in `<state>/running.json`, checkpoints in `<state>/checkpoints`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flyball_api.energy_aware_job import read_energy_aware_job
from flyball_api.names import LABEL_JOB_NAME
from flyball_kube.informer import Informer
from flyball_kube.process.log_settings import LogSettings
from flyball_kube.process.logs import configure_logging, get_logger
from flyball_kube.resources import ENERGY_AWARE_JOBS, PODS
from flyball_kube.session import ApiSession
from flyball_simulator.measured.noise import noise_factor

from flyball_testbed.controlplane.stages import (
    EXIT_CODE_ANNOTATION,
    FAILED,
    OUTCOME_ANNOTATION,
    STOPPED_ANNOTATION,
    SUCCEEDED,
)
from flyball_testbed.workload.annotations import PodAnnotations
from flyball_testbed.workload.config_maps import ConfigMapMounts
from flyball_testbed.workload.devices import DeviceManager
from flyball_testbed.workload.pods import (
    ACTIVITY_ANNOTATION,
    WORLD_SIZE_VARIABLE,
    GpuPod,
    IncarnationKey,
)
from flyball_testbed.workload.programs import ProgramPlaces, Programs
from flyball_testbed.workload.reports import post_steps
from flyball_testbed.workload.trainer import Checkpoint, Phase, Timing, Trainer, TrainingTask

logger = get_logger(__name__)

UNPLACED_RETRY_SECONDS = 1.0


@dataclass(frozen=True)
class HostSettings:
    """Where things are, and the pace; `noise` is the relative deviation of iteration times between jobs and sizes.

    `train_every_job`: pods of a job that were not written for the simulation train what their EnergyAwareJob says.
    `run_programs`: those that name a command run it, as processes of this machine; with the user's own rights, so for jobs
    that this user has written.
    """

    hardware: Path
    sockets: Path
    state: Path
    tick_seconds: float = 0.1
    report_seconds: float = 1.0
    foreign_activity: float = 0.4
    noise: float = 0.02
    train_every_job: bool = False
    run_programs: bool = False
    timing: Timing = field(default_factory=Timing)

    @property
    def config_maps(self) -> Path:
        return self.state / "config-maps"

    @property
    def running_file(self) -> Path:
        return self.state / "running.json"


@dataclass(slots=True)
class _Gang:
    """One incarnation: its pods by key, and its training processes."""

    trainer: Trainer | Programs
    pods: set[str] = field(default_factory=set)
    announced: Phase | None = None


class WorkloadHost:
    """Plays the nodes' part for the pods of one API server; `run` until cancelled."""

    def __init__(self, session: ApiSession, settings: HostSettings) -> None:
        self._session = session
        self._settings = settings
        self._devices = DeviceManager(settings.hardware)
        self._changed: set[str] = set()
        self._informer = Informer(session, PODS, GpuPod.read, on_change=self._changed.add)
        self._jobs = Informer(session, ENERGY_AWARE_JOBS, read_energy_aware_job, on_change=lambda _key: None)
        self._seen: dict[str, GpuPod] = {}
        self._unplaced: set[str] = set()
        self._gangs: dict[IncarnationKey, _Gang] = {}
        self._adopted: dict[IncarnationKey, float] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._annotations = PodAnnotations(session, self._start)
        self._config_maps = ConfigMapMounts(
            session, settings.config_maps, self._start, self._is_here, lambda pod: self._changed.add(pod.key)
        )

    async def run(self) -> None:
        """Watch, train, report; every failure of the API is tried again."""
        self._settings.state.mkdir(parents=True, exist_ok=True)
        self._adopted = dict(self._read_running())
        async with asyncio.TaskGroup() as group:
            if self._settings.train_every_job:
                group.create_task(self._jobs.run())
                await self._jobs.wait_synced()
            group.create_task(self._informer.run())
            await self._informer.wait_synced()
            self._devices.adopt(pod.uid for pod in self._informer if not pod.ended)
            group.create_task(self._tick_for_ever())

    def close(self) -> None:
        """End every program that runs."""
        for gang in self._gangs.values():
            if isinstance(gang.trainer, Programs):
                gang.trainer.kill()

    async def _tick_for_ever(self) -> None:
        next_tick = next_report = next_retry = time.monotonic()
        while True:
            now = time.monotonic()
            self._tick(now)
            if now >= next_retry:
                next_retry = now + UNPLACED_RETRY_SECONDS
                self._changed |= self._unplaced
            if now >= next_report:
                next_report = now + self._settings.report_seconds
                for gang in self._gangs.values():
                    self._report(gang)
                self._write_running()
            next_tick = max(next_tick + self._settings.tick_seconds, time.monotonic())
            await asyncio.sleep(next_tick - time.monotonic())

    def _tick(self, now: float) -> None:
        while self._changed:
            key = self._changed.pop()
            try:
                self._observe(key, now)
            except (ValueError, OSError):
                logger.exception("pod left alone", pod=key)
        for incarnation, gang in list(self._gangs.items()):
            before = gang.trainer.phase
            gang.trainer.tick(now)
            if gang.trainer.phase is not before:
                self._report(gang)
            self._move_on(gang)
            if not gang.pods and gang.trainer.phase is not Phase.SAVING:
                del self._gangs[incarnation]

    # --- pods ------------------------------------------------------------------------------------------------------

    def _observe(self, key: str, now: float) -> None:
        pod, before = self._informer.get(key), self._seen.get(key)
        if before is not None and (pod is None or pod.uid != before.uid):
            self._gone(key, before, now)
        if pod is None or pod.gpus == 0 or pod.node is None:
            return
        node = self._devices.node(pod.node)
        if node is None:
            self._unplaced.add(key)
            return
        self._seen[key] = pod
        self._config_maps.refresh(pod)
        gang = self._gang(key, pod)
        if pod.ended:
            self._unplaced.discard(key)
            node.release(pod.uid)
            return
        if pod.deleting:
            self._unplaced.discard(key)
            if gang is None:
                for device in node.held_by(pod.uid):
                    device.set_activity(0.0)
                self._annotations.annotate(pod, {STOPPED_ANNOTATION: "true"})
            else:
                gang.trainer.stop(now)
            return
        devices = node.allocate(pod)
        if devices is None:
            self._unplaced.add(key)  # its predecessor is still leaving
            return
        self._unplaced.discard(key)
        if pod.phase != "Running":
            return
        if gang is not None:
            if isinstance(gang.trainer, Programs) and not self._config_maps.are_there(pod):
                return
            gang.trainer.join(pod.uid, pod.node, devices)
        else:
            activity = float(pod.annotations.get(ACTIVITY_ANNOTATION, self._settings.foreign_activity))
            for device in devices:
                device.set_activity(activity)

    def _is_here(self, pod: GpuPod) -> bool:
        """Whether it is the one that runs under its name now, and may go on."""
        now = self._seen.get(pod.key)
        return now is not None and now.uid == pod.uid and not now.deleting

    def _gone(self, key: str, pod: GpuPod, now: float) -> None:
        """A pod that vanished: deleted by force, or its node with it."""
        del self._seen[key]
        self._unplaced.discard(key)
        self._config_maps.forget(pod)
        self._annotations.forget(pod)
        node = self._devices.node(pod.node) if pod.node is not None else None
        if node is not None:
            node.release(pod.uid)
        gang = self._gangs.get(pod.incarnation) if pod.incarnation is not None else None
        if gang is not None:
            gang.trainer.stop(now)
            gang.pods.discard(key)

    def _gang(self, key: str, pod: GpuPod) -> _Gang | None:
        """The incarnation that a pod belongs to; None for a pod that is no simulated training."""
        incarnation = pod.incarnation
        if incarnation is None:
            return None
        gang = self._gangs.get(incarnation)
        if gang is None:
            if pod.ended:
                return None
            programs = self._programs(pod)
            if programs is not None:
                gang = self._gangs[incarnation] = _Gang(programs)
                gang.pods.add(key)
                return gang
            try:
                task = TrainingTask.of_environment(pod.environment) or self._task_of_job(pod)
            except ValueError as error:
                logger.error("pod cannot train", pod=key, error=str(error))
                self._annotations.annotate(pod, {OUTCOME_ANNOTATION: FAILED, EXIT_CODE_ANNOTATION: "1"})
                return None
            if task is None:
                return None
            checkpoint = Checkpoint(self._settings.state / "checkpoints", pod.namespace, pod.job_name, incarnation[0])
            noise = noise_factor(f"{pod.namespace}/{pod.job_name}/{task.world_size}", self._settings.noise)
            progress = self._adopted.pop(incarnation, None)
            gang = self._gangs[incarnation] = _Gang(Trainer(task, checkpoint, self._settings.timing, noise, progress))
        gang.pods.add(key)
        return gang

    def _programs(self, pod: GpuPod) -> Programs | None:
        """The processes of a pod's incarnation; None where pods' commands are not to be run, or it has none."""
        size = pod.environment.get(WORLD_SIZE_VARIABLE, "")
        if not self._settings.run_programs or not pod.command or not size.isdecimal():
            return None
        state = self._settings.state
        settings = self._settings
        places = ProgramPlaces(
            state / "volumes", settings.config_maps, settings.sockets, state / "programs", settings.hardware
        )
        return Programs(self._pod_by_uid, int(size), places)

    def _pod_by_uid(self, uid: str) -> GpuPod:
        return next(pod for pod in self._seen.values() if pod.uid == uid)

    def _task_of_job(self, pod: GpuPod) -> TrainingTask | None:
        """What the pod's EnergyAwareJob says that it trains; None where it is not to be asked, or is gone."""
        job = self._jobs.get(f"{pod.namespace}/{pod.labels.get(LABEL_JOB_NAME, '')}")
        if job is None or pod.incarnation is None or job.uid != pod.incarnation[0]:
            return None
        return TrainingTask.of_job(job.spec.training, pod.environment)

    def _move_on(self, gang: _Gang) -> None:
        """Move the pods of an incarnation on, as far as its processes are."""
        phase = gang.trainer.phase
        if phase not in (Phase.STOPPED, Phase.SUCCEEDED, Phase.FAILED):
            return
        if phase is Phase.FAILED and gang.announced is not phase:
            logger.warning("training failed", pods=sorted(gang.pods), error=gang.trainer.failure)
        gang.announced = phase
        for key in gang.pods:
            pod = self._seen.get(key)
            if pod is None or pod.ended:
                continue
            if phase is Phase.SUCCEEDED:
                self._annotations.annotate(pod, {OUTCOME_ANNOTATION: SUCCEEDED})
            elif phase is Phase.FAILED:
                self._annotations.annotate(pod, {OUTCOME_ANNOTATION: FAILED, EXIT_CODE_ANNOTATION: "1"})
            if pod.deleting:
                self._annotations.annotate(pod, {STOPPED_ANNOTATION: "true"})

    # --- reports and files -----------------------------------------------------------------------------------------

    def _report(self, gang: _Gang) -> None:
        report = gang.trainer.report()
        if report is None:
            return
        for key in gang.pods:
            pod = self._seen.get(key)
            if pod is not None and not pod.ended:
                self._start(post_steps(self._settings.sockets, pod.uid, report))

    def _start(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _read_running(self) -> Iterator[tuple[IncarnationKey, float]]:
        with contextlib.suppress(FileNotFoundError):
            for entry in json.loads(self._settings.running_file.read_text()):
                yield (entry["jobUid"], entry["incarnation"]), entry["progress"]

    def _write_running(self) -> None:
        entries = [
            {"jobUid": uid, "incarnation": number, "progress": gang.trainer.progress}
            for (uid, number), gang in self._gangs.items()
            if gang.trainer.phase in (Phase.TRAINING, Phase.SAVING)
        ]
        path = self._settings.running_file
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(entries))
        temporary.rename(path)


async def run(kubeconfig: Path, settings: HostSettings) -> None:
    """Run a workload host until SIGTERM; the GPUs stay as they are, as hardware does."""
    async with await ApiSession.connect(kubeconfig) as session:
        host = WorkloadHost(session, settings)
        work = asyncio.create_task(host.run())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, work.cancel)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await work
        finally:
            host.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="workload_host", description="Play kubelets and training processes.")
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--hardware", type=Path, required=True, help="directory of the <node>.gpus files")
    parser.add_argument("--sockets", type=Path, required=True, help="directory of the agents' per-pod sockets")
    parser.add_argument("--state", type=Path, required=True, help="directory for checkpoints and progress")
    parser.add_argument("--tick-seconds", type=float, default=HostSettings.tick_seconds)
    parser.add_argument("--report-seconds", type=float, default=HostSettings.report_seconds)
    parser.add_argument("--noise", type=float, default=HostSettings.noise, help="relative deviation of iteration times")
    parser.add_argument("--restore-seconds", type=float, default=Timing.restore_seconds)
    parser.add_argument("--save-seconds", type=float, default=Timing.save_seconds)
    parser.add_argument("--foreign-activity", type=float, default=HostSettings.foreign_activity)
    parser.add_argument("--train-every-job", action="store_true", help="also those not written for the simulation")
    parser.add_argument("--run-programs", action="store_true", help="run the commands of pods here, as this user")
    arguments = parser.parse_args()
    configure_logging(LogSettings())
    settings = HostSettings(
        hardware=arguments.hardware,
        sockets=arguments.sockets,
        state=arguments.state,
        tick_seconds=arguments.tick_seconds,
        report_seconds=arguments.report_seconds,
        noise=arguments.noise,
        foreign_activity=arguments.foreign_activity,
        train_every_job=arguments.train_every_job,
        run_programs=arguments.run_programs,
        timing=Timing(arguments.restore_seconds, arguments.save_seconds),
    )
    asyncio.run(run(arguments.kubeconfig, settings))


if __name__ == "__main__":
    main()
