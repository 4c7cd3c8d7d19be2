"""The models that a profile's fit gives on the cluster's GPUs, and whether a stored fit was made for them."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime

from flyball_kube.process.logs import get_logger
from flyball_planner.fitting.fit import FittedModel, errors_of
from flyball_planner.models.gpu import GpuModel
from flyball_planner.models.job import JobModel
from flyball_planner.models.priors import model_class_prior

from flyball_operator.learning.profiles import FittedParameters, Profile
from flyball_operator.learning.records import Origin, ProfileEntry
from flyball_operator.learning.windows import observations

logger = get_logger(__name__)

# A stored fit whose errors differ by more than this from those recorded with it was made for another GPU.
SAME_ERROR = 0.01
# More than a cluster has of one product: an agent may report other limits of its GPUs each time.
MAX_MODELS = 64


def fitted_model(entry: ProfileEntry, gpu_model: GpuModel, model_class: str) -> JobModel | None:
    """The model that a profile's fit gives on these GPUs; None without one.

    A fit that no model can be made of is left out, and one that was made for other GPUs is made again.
    """
    known, learned = entry.models.get(gpu_model), entry.profile.fit
    if known is not None or learned is None:
        return known
    try:
        model = learned.model(gpu_model)
    except ValueError as error:
        logger.warning(
            "fit left out; the prior of the job's class is used", profile=entry.profile.key.path, error=str(error)
        )
        entry.profile = replace(entry.profile, fit=None)
        entry.fit.redo()
        return None
    if len(entry.models) >= MAX_MODELS:
        entry.models.clear()
    entry.models[gpu_model] = model
    if entry.fit.origin is Origin.STORED:
        entry.fit.origin = Origin.OWN
        if _was_made_for_another_gpu(model, learned, entry.profile):
            entry.prior = entry.prior or model_class_prior(model_class, gpu_model)
            entry.fit.redo()
    return model


def _was_made_for_another_gpu(model: JobModel, learned: FittedParameters, profile: Profile) -> bool:
    """Whether a stored fit predicts its own observations otherwise than it did when it was made.

    Watts are fitted over the GPU model's voltage, so that with another knee, slope or idle power the same parameters
    mean something else. What was measured still stands.
    """
    try:
        found = errors_of(model, observations(profile.points))
    except ValueError as error:
        logger.warning("observations left out", profile=profile.key.path, error=str(error))
        return False
    stated = ((found.time_mape, learned.time_error), (found.energy_mape, learned.energy_error))
    if not any(abs(now - before) > SAME_ERROR for now, before in stated):  # what is NaN was not measured
        return False
    logger.info(
        "fitted again: its fit is of another GPU model",
        profile=profile.key.path,
        energy_error=round(learned.energy_error, 4),
        energy_error_now=round(found.energy_mape, 4),
    )
    return True


def as_fit(fitted: FittedModel, samples: int, now: datetime) -> FittedParameters:
    """A fit as it is kept in a profile."""

    def known(error: float) -> float:
        return error if math.isfinite(error) else 0.0

    return FittedParameters(
        fitted.model.parameters(),
        fitted.standard_errors,
        known(fitted.errors.time_mape),
        known(fitted.errors.energy_mape),
        samples,
        now.replace(microsecond=0),
    )
