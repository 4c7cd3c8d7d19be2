"""A process' own place in a pipeline: its plan, the GPU whose clock follows it, and what the job wants of both."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Callable

from flyball.agent import Agent
from flyball.clocks import Clock, own_gpu
from flyball.environment import Environment
from flyball.measuring import gpu_counter
from flyball.pipeline import Pipeline, read_plans
from flyball.pipeline_point import WantedPoint
from flyball.shared_values import SharedValues
from flyball.stage_profile import StageProfile

logger = logging.getLogger("flyball")


def own_pipeline(
    environment: Environment,
    plan: str | None,
    *,
    stage: int,
    replica: int,
    gpu: str,
    values: SharedValues | None,
    monotonic: Callable[[], float],
    measure: Sequence[int] = (),
    profile: str = "",
) -> Pipeline:
    """The pipeline as this process takes part in it; one without a plan or a clock where they are not known, or wrong.

    With `measure` it runs by no plan, and measures the stage at these clocks into `profile`.
    `plan` is a file (None: the job's `spec.pipeline` says which), `gpu` a UUID (empty: as the environment has it), and
    `values` is what the processes of the job share.
    """
    section = environment.pipeline if plan is None and not measure else None
    path = plan if section is None else section.plan
    plans = None if path is None else read_plans(path, stage, environment.world_size, section)
    own = gpu or own_gpu(os.environ, environment.local_rank)
    if own is None and environment.socket and plans is not None:
        logger.warning(
            "no clocks are asked for, training goes on: NVIDIA_VISIBLE_DEVICES does not say which of the pod's GPUs is "
            "this process': give pipeline(gpu=...) its UUID"
        )
    if plans is not None and section is not None and environment.socket is None:
        logger.warning("no clocks are asked for, training goes on: the job has a pipeline, and its pods no socket")
    measured = None
    if measure and replica == 0:
        if own is None or environment.socket is None:
            logger.warning("stage %d is not measured, training goes on: its GPU or its agent is not known", stage)
        else:
            agent, gpu = Agent(environment.socket), own
            measured = StageProfile(measure, lambda: gpu_counter(agent, gpu))
    wanted = None
    if plans is not None and section is not None:
        wanted = WantedPoint(plans, section, monotonic)
    return Pipeline(
        plans,
        Clock(environment.socket, own, monotonic) if environment.socket and own is not None else None,
        stage=stage,
        replica=replica,
        replicas=environment.world_size // plans.stages if plans is not None else 1,
        values=values,
        wanted_seconds=None if wanted is None else wanted.seconds,
        profile=measured,
        profile_path=os.path.join(profile, f"stage-{stage:05d}.csv"),
        monotonic=monotonic,
    )
