"""How sure a job's model is: of how long an iteration takes at one place, and of what another place would have taken."""

from __future__ import annotations

import math

from flyball_kube.process.logs import get_logger
from flyball_planner.fitting.uncertainty import (
    Covariance,
    Place,
    Ratios,
    prior_covariance,
    ratios,
    upper_quantiles,
)
from flyball_planner.models.job import JobModel
from flyball_planner.models.priors import model_class_prior

from flyball_operator.learning.profiles import FittedParameters
from flyball_operator.learning.records import AskedPace, PaceBand, ProfileEntry

logger = get_logger(__name__)

# Of a normal distribution, in standard deviations: what nine of ten are below, and one for each mean absolute error.
NINE_IN_TEN, DEVIATION_PER_MEAN_ERROR = 1.2816, 1.2533
# Of what may be so many times as long, or as short, at another place nothing is known.
WIDEST_RATIO = 100.0
MAX_CLASS_BANDS = 5000
# Of one fit: for what its GPUs are an agent's report has the word, and each may say something else.
MAX_FIT_BANDS = 500


class PaceBands:
    """Bands within which the time of an iteration is in nine cases of ten, as shares of what the job's model predicts.

    Each is worked out once, for a fit or for a model class, at a place.
    """

    def __init__(self) -> None:
        self._of_classes: dict[tuple[str, AskedPace], PaceBand | None] = {}

    def of_fit(
        self, entry: ProfileEntry, learned: FittedParameters, model: JobModel, model_class: str, pace: AskedPace
    ) -> PaceBand | None:
        """The band of a job that was measured; None where its model has no answer at the place."""
        if pace not in entry.bands:
            if len(entry.bands) >= MAX_FIT_BANDS:
                entry.bands.clear()
            entry.bands[pace] = self._of_fit(entry, learned, model, model_class, pace)
        return entry.bands[pace]

    def of_class(self, model_class: str, pace: AskedPace) -> PaceBand | None:
        """The band of a job of which nothing is known but its class."""
        of_class = (model_class, pace)
        if of_class not in self._of_classes:
            prior = model_class_prior(model_class, pace.gpu_model)
            if len(self._of_classes) >= MAX_CLASS_BANDS:
                self._of_classes.clear()
            self._of_classes[of_class] = pace_band(prior, prior_covariance(prior), pace)
        return self._of_classes[of_class]

    def _of_fit(
        self, entry: ProfileEntry, learned: FittedParameters, model: JobModel, model_class: str, pace: AskedPace
    ) -> PaceBand | None:
        """By the fit's covariance; without that by its error where it was measured, and by the class where it was not."""
        covariance = entry.fit.covariance(learned)
        if covariance is not None:
            band = pace_band(model, covariance, pace)
        elif any((point.gpus, point.nodes) == (pace.gpus, pace.nodes) for point in entry.profile.points):
            band = (1.0, 1.0)
        else:
            band = self.of_class(model_class, pace)
        # What its parameters cannot describe is in no covariance.
        least = math.exp(NINE_IN_TEN * DEVIATION_PER_MEAN_ERROR * learned.time_error)
        return None if band is None else (min(band[0], 1.0 / least), max(band[1], least))


def pace_band(model: JobModel, covariance: Covariance, pace: AskedPace) -> PaceBand | None:
    """The band at one place by one covariance; None where the model has no answer there."""
    try:
        at = (pace.gpus, pace.nodes, pace.global_batch_size, [pace.clock_megahertz])
        most = float(upper_quantiles(model, covariance, *at).seconds[0, 0])
        share = most / float(model.curves(*at).seconds[0, 0])
    except (ValueError, ArithmeticError) as error:
        logger.warning("no band for the end of jobs", error=str(error))
        return None
    return (1.0 / share, share) if math.isfinite(share) and share >= 1.0 else None


def job_ratios(
    model: JobModel,
    covariance: Covariance,
    learned: FittedParameters,
    ran: Place,
    instead: Place,
    global_batch_size: int,
) -> Ratios | None:
    """`ratios`, with nine chances in ten, with the fit's own error; None where the model has no answer, or none that says
    anything."""
    misfit = DEVIATION_PER_MEAN_ERROR * learned.time_error, DEVIATION_PER_MEAN_ERROR * learned.energy_error
    try:
        found = ratios(model, covariance, ran, instead, global_batch_size, misfit=misfit)
    except (ValueError, ArithmeticError) as error:
        logger.warning("no comparison with another clock", error=str(error))
        return None
    # What scripts say of their time can be off by any factor, and what follows must fit the cluster's book.
    return found if all(1 / WIDEST_RATIO <= value <= WIDEST_RATIO for band in found for value in band) else None
