"""The series of EnergyQuotas: what each tenant's jobs have used in its period, and what they may, as their statuses say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from flyball_api.energy.quota import EnergyQuota
from flyball_api.values.units import JOULES_PER_KILOJOULE, MILLIJOULES_PER_JOULE
from prometheus_client.core import GaugeMetricFamily, Metric

# At most four series a quota; a cluster has about as many quotas as teams.
MAX_QUOTAS = 1000
LABELS = ("namespace", "quota")


def _energy(quota: EnergyQuota) -> float | None:
    period = quota.status.energy_period
    return None if period is None else period.consumed_millijoules / MILLIJOULES_PER_JOULE


def _energy_budget(quota: EnergyQuota) -> float | None:
    budget = quota.spec.energy_budget
    return None if budget is None else budget.kilojoules * JOULES_PER_KILOJOULE


def _gpus(quota: EnergyQuota) -> float | None:
    return None if quota.status.allocated is None else quota.status.allocated.gpus


def _most_gpus(quota: EnergyQuota) -> float | None:
    return quota.spec.gpus


_GAUGES: tuple[tuple[str, str, Callable[[EnergyQuota], float | None]], ...] = (
    ("energy_joules", "Energy that the namespace's jobs have used in the quota's period", _energy),
    ("energy_budget_joules", "Energy that they may use in each period, where the quota bounds it", _energy_budget),
    ("gpus", "GPUs that the plan gives the namespace's jobs", _gpus),
    ("most_gpus", "GPUs that it may give them, where the quota bounds them", _most_gpus),
)


def quota_families(quotas: Sequence[EnergyQuota]) -> Iterator[Metric]:
    """Every family of quotas, each one also where no quota has a series of it; of too many, the first by name."""
    shown = sorted(quotas, key=lambda quota: (quota.namespace, quota.name))[:MAX_QUOTAS]
    for name, text, value in _GAUGES:
        gauge = GaugeMetricFamily(f"flyball_quota_{name}", text, labels=LABELS)
        for quota in shown:
            found = value(quota)
            if found is not None:
                gauge.add_metric((quota.namespace, quota.name), found)
        yield gauge
