"""What follows from a profile's fit on the cluster's GPUs, whatever their agents say that these are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flyball_operator.learning.confidence import MAX_FIT_BANDS, PaceBands
from flyball_operator.learning.fitted_models import MAX_MODELS, fitted_model
from flyball_operator.learning.profiles import FittedParameters, Profile, ProfileKey
from flyball_operator.learning.records import AskedPace, ProfileEntry
from flyball_planner.models.gpu import GpuModel
from flyball_planner.models.priors import model_class_prior

from tests.support.learned_jobs import A100, NOW

PRIOR = model_class_prior("gpt2", A100)
LEARNED = FittedParameters(PRIOR.parameters(), {}, 0.1, 0.1, 9, NOW)


def entry() -> ProfileEntry:
    return ProfileEntry(Profile(ProfileKey("team", "train", A100.product), fit=LEARNED))


def other_limits(number: int) -> Iterator[GpuModel]:
    """The same GPU with a largest limit that is another one in each of its agent's reports."""
    return (replace(A100, max_power_limit_watts=A100.max_power_limit_watts + index / 1000) for index in range(number))


def test_of_gpus_that_are_others_in_each_report_few_models_are_kept() -> None:
    """Whoever has one agent's token would else fill the operator's memory."""
    kept = entry()
    for gpu_model in other_limits(3 * MAX_MODELS):
        model = fitted_model(kept, gpu_model, "gpt2")
        assert model is not None
        assert fitted_model(kept, gpu_model, "gpt2") is model
        assert len(kept.models) <= MAX_MODELS


def test_of_gpus_that_are_others_in_each_report_few_bands_are_kept() -> None:
    kept, bands = entry(), PaceBands()
    for gpu_model in other_limits(MAX_FIT_BANDS + 10):
        pace = AskedPace(gpu_model, 4, 1, 256, 1200)
        band = bands.of_fit(kept, LEARNED, PRIOR, "gpt2", pace)
        assert band is not None
        assert bands.of_fit(kept, LEARNED, PRIOR, "gpt2", pace) is band
        assert len(kept.bands) <= MAX_FIT_BANDS
