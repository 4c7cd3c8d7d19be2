"""What an unmeasured schedule would take, as gradient-boosted trees learn it from the measured ones.

Kareus, section 4.3.2 ("Surrogate model", "Exploration with uncertainty") and appendix C (hyperparameters). Two models,
one of time and one of dynamic energy; total energy is then static power times time plus dynamic energy. How unsure they
are is read from how much models trained on resamples disagree.

The models learn logarithms. Times and energies differ by factors over a search space and by per cents along its
frontier; squared error on the plain numbers spends the trees on the worst schedules, which nobody will run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

BOOSTING = {"max_depth": 6, "learning_rate": 0.3}
ROUNDS = 100
ENSEMBLE = 5
BOOTSTRAP_FRACTION = 0.8
"""Appendix C, "XGBoost hyperparameters"."""


class MissingXgboost(ImportError):
    """The surrogates need xgboost, which comes with the extra `kareus`."""


@dataclass(frozen=True)
class Prediction:
    """Predicted time and dynamic energy, each of shape (models, schedules), in the units they were trained in.

    The first rows are the bootstrap ensemble; the last is the model of all the data.
    """

    time: np.ndarray
    dynamic_energy: np.ndarray

    @property
    def uncertainty(self) -> np.ndarray:
        """Shape (schedules,): the ensemble's standard deviations of both objectives, added (Algorithm 1, line 9).

        Of logarithms, so that the two are relative and can be added.
        """
        deviations: np.ndarray = np.log(self.time[:-1]).std(axis=0) + np.log(self.dynamic_energy[:-1]).std(axis=0)
        return deviations


def predict(
    features: np.ndarray,
    time: np.ndarray,
    dynamic_energy: np.ndarray,
    unmeasured: np.ndarray,
    rng: np.random.Generator,
) -> Prediction:
    """Train on measured schedules and predict unmeasured ones (Algorithm 1, lines 3-9).

    `features` has shape (measured, columns), `time` and `dynamic_energy` (measured,), both positive; `unmeasured` has
    shape (candidates, columns). Raises MissingXgboost where xgboost is not installed.
    """
    targets = (np.log(time), np.log(dynamic_energy))
    size = max(1, round(BOOTSTRAP_FRACTION * len(time)))
    resamples = [rng.choice(len(time), size, replace=True) for _ in range(ENSEMBLE)]
    predicted = np.array(
        [
            [_fit(features[rows], target[rows], rng).predict(unmeasured) for target in targets]
            for rows in [*resamples, np.arange(len(time))]
        ]
    )
    return Prediction(np.exp(predicted[:, 0]), np.exp(predicted[:, 1]))


def _fit(features: np.ndarray, target: np.ndarray, rng: np.random.Generator) -> Any:
    try:
        from xgboost import XGBRegressor
    except ImportError as error:
        raise MissingXgboost(
            "Kareus' surrogates need xgboost, which is not installed: pip install 'flyball[kareus]'"
        ) from error
    # One thread: the data is a few hundred rows, and the sums then come in the same order on every machine.
    model = XGBRegressor(
        n_estimators=ROUNDS, n_jobs=1, tree_method="exact", random_state=int(rng.integers(2**31)), **BOOSTING
    )
    return model.fit(features, target)
