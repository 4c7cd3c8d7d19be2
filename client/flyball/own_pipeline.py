"""A process' own place in a pipeline: its plan, the GPU whose clock follows it, and what the job wants of both."""

from __future__ import annotations

import logging
import os
from typing import Callable

from flyball.clocks import Clock, own_gpu
from flyball.environment import Environment
from flyball.pipeline import Pipeline, read_plans
from flyball.pipeline_point import WantedPoint
from flyball.shared_values import SharedValues

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
) -> Pipeline:
    """The pipeline as this process takes part in it; one without a plan or a clock where they are not known, or wrong.

    `plan` is a file (None: the job's `spec.pipeline` says which), `gpu` a UUID (empty: as the environment has it), and
    `values` is what the processes of the job share.
    """
    section = environment.pipeline if plan is None else None
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
        monotonic=monotonic,
    )
