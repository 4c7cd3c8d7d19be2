"""A process' own place in a pipeline: its plan, the GPU whose clock follows it, and what the job wants of both."""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Sequence
from typing import Callable

from flyball.environment import Environment, PipelineSection
from flyball.node.agent import Agent
from flyball.node.capabilities import KnownSetLatency
from flyball.node.clocks import Clock, own_gpu
from flyball.node.measuring import Measurement, gpu_counter
from flyball.pipelines.measured_stage import Keep, keep_in, report_to
from flyball.pipelines.partition import PartitionMeter, Run
from flyball.pipelines.pipeline import Pipeline
from flyball.pipelines.plan import InvalidPlan, StagePlans
from flyball.pipelines.point import WantedPoint
from flyball.pipelines.stage_profile import StageProfile
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
    measure: Sequence[int] | None = None,
    profile: str = "",
    look_beside: Callable[[Callable[[], None]], None] = lambda look: None,
) -> Pipeline:
    """The pipeline that this process is a stage of; without a plan or a clock where they are missing or cannot be used.

    With `measure` it runs by no plan, and measures the stage at these clocks into the folder `profile`. Raises ValueError
    where what is to be measured cannot be meant. Where the job's `spec.pipeline` says so it does the same as long as there
    is no plan, for the operator to have one made.
    `plan` is a file (None: the job's `spec.pipeline` says which), `gpu` a UUID (empty: as the environment has it), and
    `values` is what the processes of the job share. `look_beside` has what it is given called now and then, beside the
    training.
    """
    clocks = _clocks(measure, profile, plan)
    section = environment.pipeline if plan is None and not clocks else None
    if section is not None and section.measure and not os.path.exists(section.plan):
        logger.info("stage %d is measured, for a plan to be made: there is none at %s yet", stage, section.plan)
        clocks, section = list(section.measure), None
    path = plan if section is None else section.plan
    plans = None if path is None else read_plans(path, stage, environment.world_size, section)
    own = gpu or own_gpu(os.environ, environment.local_rank)
    _warn_of_what_is_not_followed(environment, plans, section, own, measures=bool(measure))
    measured, keep = None, None
    if clocks and replica == 0:
        measured, keep = _measured_stage(environment.socket, own, stage, clocks, profile)
    wanted = None
    if plans is not None and section is not None:
        wanted = WantedPoint(plans, section, monotonic)
    latency = None
    if plans is not None and environment.socket is not None and own is not None:
        latency = KnownSetLatency(Agent(environment.socket), own, monotonic)
        look_beside(latency.look)
    return Pipeline(
        plans,
        Clock(environment.socket, own, monotonic) if environment.socket and own is not None else None,
        stage=stage,
        replica=replica,
        replicas=environment.world_size // plans.stages if plans is not None else 1,
        values=values,
        wanted_seconds=None if wanted is None else wanted.seconds,
        announced_degree=(lambda: 1.0) if wanted is None else lambda: wanted.degree(replica),
        profile=measured,
        keep_profile=keep,
        set_seconds=(lambda: None) if latency is None else latency.seconds,
        monotonic=monotonic,
    )


def _warn_of_what_is_not_followed(
    environment: Environment,
    plans: StagePlans | None,
    section: PipelineSection | None,
    own: str | None,
    *,
    measures: bool,
) -> None:
    """Log why the plans, or the job's plan, change no clock, where that is so."""
    if own is None and environment.socket and plans is not None:
        logger.warning(
            "no clocks are asked for, training goes on: NVIDIA_VISIBLE_DEVICES does not say which of the pod's GPUs is "
            "this process': give pipeline(gpu=...) its UUID"
        )
    if plans is not None and section is not None and environment.socket is None:
        logger.warning("no clocks are asked for, training goes on: the job has a pipeline, and its pods no socket")
    if measures and environment.pipeline is not None:
        logger.warning(
            "the job's plan %s is not followed: pipeline(measure=...) runs by no plan; leave it out once all is measured",
            environment.pipeline.plan,
        )


def _measured_stage(
    socket: str | None, own: str | None, stage: int, clocks: Sequence[int], profile: str
) -> tuple[StageProfile | None, Keep | None]:
    """The measurements of this stage at these clocks (MHz), to be made yet, and what keeps them; neither, with a warning,
    where it cannot be measured."""
    why = _not_measured(socket, own, profile)
    if socket is None or own is None or why:
        logger.warning("stage %d is not measured, training goes on: %s", stage, why)
        return None, None
    agent = Agent(socket)
    measured = StageProfile(clocks, lambda: gpu_counter(agent, own))
    return measured, keep_in(profile) if profile else report_to(agent)


def own_partition_meter(
    environment: Environment,
    run: Run,
    *,
    gpu: str,
    search: int,
    values: SharedValues | None,
    measure: Callable[[], Measurement],
    monotonic: Callable[[], float],
) -> PartitionMeter:
    """What measures a partition in this process, in the run's search of that number; `measure` is of all of the pod's GPUs.

    Raises RuntimeError where the pod has no agent to ask, or this process' GPU is not known, or its processes share no
    volume.
    """
    own = gpu or own_gpu(os.environ, environment.local_rank)
    why = _not_measured(environment.socket, own, "")
    if environment.world_size > 1 and values is None:
        why = why or "its processes share no volume named checkpoint"
    if environment.socket is None or own is None or why:
        raise RuntimeError(f"the partition cannot be measured: {why}")
    agent = Agent(environment.socket)

    def megahertz() -> int | None:
        found = gpu_counter(agent, own)
        return None if found is None else found[2]

    return PartitionMeter(
        run,
        ask_clock=Clock(environment.socket, own, monotonic).ask,
        megahertz=megahertz,
        measure=measure if environment.local_rank == 0 else None,
        rank=environment.rank,
        world_size=environment.world_size,
        search=search,
        values=values,
        monotonic=monotonic,
    )


def _clocks(measure: Sequence[int] | None, profile: str, plan: str | None) -> list[int]:
    """The clocks to measure at, none where nothing is asked for; what nobody can mean is a ValueError."""
    if measure is None:
        if profile:
            raise ValueError("pipeline(profile=...) is where measure= leaves what it finds: give it clocks, too")
        return []
    try:
        clocks = [operator.index(clock) for clock in measure]
    except TypeError:
        clocks = []
    if not clocks or min(clocks) <= 0:
        raise ValueError(
            f"pipeline(measure={measure!r}): wanted clocks in megahertz, one or more, as range(1410, 800, -60)"
        )
    if plan is not None:
        raise ValueError(f"pipeline(measure=...) runs by no plan: leave {plan!r} out")
    if not profile:
        raise ValueError("pipeline(measure=...) needs profile=, a folder that is still there when the pods are gone")
    return clocks


def _not_measured(socket: str | None, gpu: str | None, profile: str) -> str:
    """Why a stage cannot be measured; empty where it can. The folder is made now, and not after all is measured."""
    if socket is None:
        return "FLYBALL_SOCKET names no agent, whose readings it needs: only pods of an EnergyAwareJob have one"
    if gpu is None:
        return "NVIDIA_VISIBLE_DEVICES does not say which GPU is this process': give pipeline(gpu=...) its UUID"
    try:
        if not profile:  # it goes to the agent
            return ""
        os.makedirs(profile, exist_ok=True)
        return "" if os.access(profile, os.W_OK) else f"the folder {profile} may not be written"
    except OSError as error:
        return str(error)


def read_plans(path: str, stage: int, world_size: int, section: PipelineSection | None = None) -> StagePlans | None:
    """The plans in a file; None, with a warning, where there are none that this training can run by.

    Plans of other pipelines than the job's `section` says are none.
    """
    try:
        plans = StagePlans.read(path, stage)
    except (OSError, InvalidPlan) as error:
        logger.warning("no clocks are asked for, training goes on: %s", error)
        return None
    stages = plans.stages
    why = ""
    if world_size % stages:
        why = f"{world_size} processes are no whole number of pipelines of {stages} stages"
    elif section is not None and section.stages not in (None, stages):
        why = f"{path} is a plan of {stages} stages, and the job's spec.pipeline has {section.stages}"
    elif section is not None and section.microbatches and not plans.microbatches_fit(section.microbatches):
        why = f"{path} is no plan of the {section.microbatches} microbatches of the job's spec.pipeline"
    if why:
        logger.warning("no clocks are asked for, training goes on: %s", why)
        return None
    return plans
