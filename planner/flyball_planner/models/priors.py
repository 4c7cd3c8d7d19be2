"""Priors: what a job of a known class of model probably does, before it has run one iteration."""

from __future__ import annotations

import json
import math
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib import resources
from typing import Any

import numpy as np

from flyball_planner.models.gpu import GpuModel, gpu_model_for
from flyball_planner.models.job import JobModel

REFERENCE_PRODUCT = "NVIDIA-A100-SXM4-40GB"
REFERENCE_LOCAL_BATCH = 32  # where `busy_watts` of the table hold
BATCH_SHIFT, BATCH_OFFSET = 1.0, 20.0  # power nearly flat over the batch: V100, 205..228 W from 8 samples up


@cache
def _table() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("model_classes.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def known_model_classes() -> tuple[str, ...]:
    """The classes that have a prior of their own, sorted."""
    return tuple(sorted(_table()["classes"]))


def is_known_model_class(name: str) -> bool:
    """Whether a class has a prior of its own, under this name in any case or an alias of it."""
    table, plain = _table(), name.strip().lower()
    return plain in table["classes"] or plain in table["aliases"]


def nearest_model_classes(name: str, count: int = 3) -> tuple[str, ...]:
    """The known classes whose names are most like this one, the most alike first."""
    known, plain = known_model_classes(), name.strip().lower()
    return tuple(get_close_matches(plain, known, n=count, cutoff=0.0))


@lru_cache(maxsize=1024)
def model_class_prior(model_class: str, gpu_model: GpuModel) -> JobModel:
    """The prior of a model class on a GPU model (model_classes.json has each number and its source).

    Names are matched without regard to case; an unknown or empty class gets the generic prior, which sits in the middle
    of the known ones, so that a first plan is sane and the first observations decide.
    """
    table = _table()
    name = model_class.strip().lower()
    name = table["aliases"].get(name, name)
    entry = table["classes"].get(name, table["generic"])
    reference = gpu_model_for(REFERENCE_PRODUCT)
    if reference is None:
        raise LookupError(f"the GPU catalogue lacks {REFERENCE_PRODUCT}, which the priors are given for")
    return _on_reference(entry, float(table["sync_watts"]), reference).on(gpu_model)


def _on_reference(entry: dict[str, Any], sync_watts: float, gpu: GpuModel) -> JobModel:
    io, io_sample, gradient, sample, local, local_gpu, node, node_gpu, io_overlap, sync_overlap = entry["time"]
    share = entry["clock_share"]
    top = float(gpu.max_clock_megahertz)
    voltage = float(gpu.voltage(np.array([top]))[0])
    dynamic = (entry["busy_watts"] - gpu.idle_power_watts * voltage) / (voltage * voltage * top)
    sync_dynamic = max(sync_watts - gpu.idle_power_watts * voltage, 0.0) / (voltage * voltage * top)
    return JobModel(
        gpu_model=gpu,
        io_seconds=io,
        io_seconds_per_sample=io_sample,
        gradient_seconds=gradient,
        gradient_seconds_per_sample=sample * (1.0 - share),
        gradient_megacycles_per_sample=sample * share * top,
        gradient_watts_per_megahertz=dynamic / (math.log(REFERENCE_LOCAL_BATCH + BATCH_SHIFT) + BATCH_OFFSET),
        gradient_batch_shift=BATCH_SHIFT,
        gradient_batch_offset=BATCH_OFFSET,
        local_sync_seconds=local,
        local_sync_seconds_per_gpu=local_gpu,
        node_sync_seconds=node,
        node_sync_seconds_per_gpu=node_gpu,
        io_overlap=io_overlap,
        sync_overlap=sync_overlap,
        sync_watts_per_megahertz=sync_dynamic,
    )
