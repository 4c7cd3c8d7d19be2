"""Simulated training on hardware files, with the clock in the test's hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.device import DeviceFault
from flyball_simulated_gpu.hardware_file import create_node_file
from flyball_simulated_gpu.shared import SimulatedDevice, SimulatedNode
from flyball_simulator.measured.iterations import iteration
from flyball_simulator.measured.throughputs import model_class
from flyball_testbed.workload.trainer import Checkpoint, Phase, Timing, Trainer, TrainingTask

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]
TASK = TrainingTask(model_class("resnet50"), 256, 100, world_size=4)
TIMING = Timing(restore_seconds=1.0, save_seconds=2.0, checkpoint_interval_seconds=5.0)


@pytest.fixture
def devices(tmp_path: Path) -> Iterator[list[SimulatedDevice]]:
    create_node_file(tmp_path / "n.gpus", devices=[A100] * 4)
    with SimulatedNode.open(tmp_path / "n.gpus") as node:
        yield node.devices


def checkpoint(tmp_path: Path, uid: str = "uid") -> Checkpoint:
    return Checkpoint(tmp_path / "checkpoints", "ns", "job", uid)


def started(tmp_path: Path, devices: list[SimulatedDevice], task: TrainingTask = TASK, noise: float = 1.0) -> Trainer:
    """A trainer that began to compute at time 1.0."""
    trainer = Trainer(task, checkpoint(tmp_path), TIMING, noise)
    trainer.join("a", "n0", devices[:2])
    trainer.tick(0.0)
    assert trainer.phase is Phase.WAITING, "half of the gang does not start"
    trainer.join("b", "n0", devices[2:])
    trainer.tick(0.0)
    assert trainer.phase is Phase.RESTORING
    assert devices[0].read().activity == 0.0
    trainer.tick(1.0)
    assert trainer.phase is Phase.TRAINING
    return trainer


def truth(clock: int, task: TrainingTask = TASK) -> float:
    return iteration(task.model, 4, 1, task.global_batch_size, clock / 1410).seconds


def test_it_computes_at_the_pace_of_the_oracle(tmp_path: Path, devices: list[SimulatedDevice]) -> None:
    trainer = started(tmp_path, devices, noise=1.1)
    trainer.tick(2.0)
    trainer.tick(4.0)
    assert trainer.progress == pytest.approx(3.0 / (truth(1410) * 1.1))
    expected = iteration(TASK.model, 4, 1, 256, 1.0).activity
    assert all(device.read().activity == pytest.approx(expected) for device in devices)


def test_the_slowest_gpu_sets_the_pace(tmp_path: Path, devices: list[SimulatedDevice]) -> None:
    trainer = started(tmp_path, devices)
    devices[3].set_locked_clocks_megahertz(705, 705)
    trainer.tick(11.0)
    assert trainer.progress == pytest.approx(10.0 / truth(705))
    devices[3].reset_locked_clocks()
    for device in devices:
        device.set_power_limit_milliwatts(150_000)
    trainer.tick(11.0)
    limited = devices[0].read().sm_clock_megahertz
    assert limited < 1410
    before = trainer.progress
    trainer.tick(12.0)
    assert trainer.progress - before == pytest.approx(1.0 / truth(limited), rel=0.02)


def test_reports_span_whole_iterations_exactly(tmp_path: Path, devices: list[SimulatedDevice]) -> None:
    trainer = started(tmp_path, devices)
    assert trainer.report() is None
    total_iterations, total_seconds = 0, 0.0
    for tick in range(1, 60):
        trainer.tick(1.0 + tick * 0.1)
        if tick % 10 == 0:
            report = trainer.report()
            assert report is not None
            assert report.window_seconds == pytest.approx(report.window_iterations * truth(1410))
            assert report.local_batch_size == 64
            total_iterations += report.window_iterations
            total_seconds += report.window_seconds
            assert report.iterations == total_iterations
    assert total_seconds <= 6.0


def test_it_stops_with_a_checkpoint_and_goes_on_from_it(tmp_path: Path, devices: list[SimulatedDevice]) -> None:
    trainer = started(tmp_path, devices)
    trainer.tick(3.0)
    done = int(trainer.progress)
    assert done > 0
    trainer.stop(3.0)
    assert trainer.phase is Phase.SAVING
    assert all(device.read().activity == 0.0 for device in devices)
    trainer.stop(3.5)  # the second pod is told as well
    trainer.tick(4.9)
    assert trainer.phase is Phase.SAVING
    trainer.tick(5.1)
    assert trainer.phase is Phase.STOPPED
    assert checkpoint(tmp_path).load() == done
    assert checkpoint(tmp_path, uid="another job of that name").load() == 0

    successor = Trainer(replace(TASK, world_size=2), checkpoint(tmp_path), TIMING, 1.0)
    successor.join("c", "n0", devices[:2])
    successor.tick(10.0)
    successor.tick(11.0)
    assert successor.progress == done


def test_killed_without_warning_it_loses_no_more_than_since_the_last_checkpoint(
    tmp_path: Path, devices: list[SimulatedDevice]
) -> None:
    trainer = started(tmp_path, devices)
    for second in range(2, 10):
        trainer.tick(float(second))
    assert int(5.0 / truth(1410)) <= checkpoint(tmp_path).load() <= trainer.progress


def test_it_ends_when_the_iterations_are_done(tmp_path: Path, devices: list[SimulatedDevice]) -> None:
    trainer = started(tmp_path, devices, replace(TASK, iterations=5))
    trainer.tick(60.0)
    assert trainer.phase is Phase.SUCCEEDED
    assert all(device.read().activity == 0.0 for device in devices)
    report = trainer.report()
    assert report is not None
    assert report.iterations == 5
    assert report.window_seconds == pytest.approx(5 * truth(1410))
    trainer.stop(61.0)
    assert trainer.phase is Phase.SUCCEEDED


@pytest.mark.parametrize("fault", ["lost", "reloaded"])
def test_a_gpu_that_fails_ends_the_whole_gang(tmp_path: Path, devices: list[SimulatedDevice], fault: str) -> None:
    trainer = started(tmp_path, devices)
    trainer.tick(2.0)
    if fault == "lost":
        devices[2].flags |= DeviceFault.LOST
    else:
        devices[2].reload()
    trainer.tick(3.0)
    assert trainer.phase is Phase.FAILED
    assert devices[2].uuid in trainer.failure
    assert devices[0].read().activity == 0.0


def test_a_restarted_host_goes_on_where_it_was(tmp_path: Path, devices: list[SimulatedDevice]) -> None:
    for device in devices:
        device.set_activity(0.5)
    trainer = Trainer(TASK, checkpoint(tmp_path), TIMING, 1.0, progress=42.5)
    trainer.join("a", "n0", devices)
    trainer.tick(0.0)
    assert (trainer.phase, trainer.progress) == (Phase.TRAINING, 42.5)

    told_meanwhile = Trainer(TASK, checkpoint(tmp_path), TIMING, 1.0, progress=42.5)
    told_meanwhile.stop(0.0)
    assert told_meanwhile.phase is Phase.STOPPED
    assert checkpoint(tmp_path).load() == 42


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"DEVCLUSTER_GLOBAL_BATCH": "x"}, "DEVCLUSTER_GLOBAL_BATCH='x'"),
        ({"DEVCLUSTER_ITERATIONS": "0"}, "DEVCLUSTER_ITERATIONS='0'"),
        ({"FLYBALL_WORLD_SIZE": ""}, "FLYBALL_WORLD_SIZE=''"),
        ({"DEVCLUSTER_MODEL_CLASS": "llama"}, "'llama' is unknown"),
    ],
)
def test_a_task_that_makes_no_sense_is_named(environment: dict[str, str], said: str) -> None:
    good = {
        "DEVCLUSTER_MODEL_CLASS": "bert",
        "DEVCLUSTER_GLOBAL_BATCH": "64",
        "DEVCLUSTER_ITERATIONS": "10",
        "FLYBALL_WORLD_SIZE": "4",
    }
    assert TrainingTask.of_environment(good) == TrainingTask(model_class("bert"), 64, 10, 4)
    with pytest.raises(ValueError, match=said):
        TrainingTask.of_environment(good | environment)
    assert TrainingTask.of_environment({}) is None
