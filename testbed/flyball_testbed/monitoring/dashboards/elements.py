"""What several dashboards say in the same way."""

from __future__ import annotations

from flyball_testbed.monitoring.panel import RATE_INTERVAL, Colour, Panel, Query, Shape, Threshold, Unit

JOULES_PER_KILOWATT_HOUR = "3.6e6"
BAD_ABOVE_NONE = (Threshold(1e-9, Colour.ACT),)
LOOK_ABOVE_NONE = (Threshold(1e-9, Colour.LOOK),)
# Of many nodes or jobs, so many lines can still be told apart.
MOST_LINES = 12


def number(
    title: str,
    question: str,
    expr: str,
    unit: Unit = Unit.COUNT,
    *,
    thresholds: tuple[Threshold, ...] = (),
    base: Colour | None = None,
    width: int = 4,
) -> Panel:
    """A panel that shows one number."""
    return Panel(title, question, (Query(expr, title),), unit, Shape.NUMBER, thresholds, base, width)


def of_job(metric: str) -> str:
    """A metric of jobs, once for each of those in the chosen namespaces."""
    return f'max by (namespace, job_name) (flyball_job_{metric}{{namespace=~"$namespace"}})'


def of_quota(metric: str) -> str:
    """A metric of EnergyQuotas, once for each of those in the chosen namespaces."""
    return f'max by (namespace, quota) (flyball_quota_{metric}{{namespace=~"$namespace"}})'


def quantile(share: float, histogram: str, by: str = "") -> str:
    """This quantile, of 0 to 1, of one of our histograms over the last while."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share:g}, sum by ({labels}) (rate(flyball_{histogram}_bucket[{RATE_INTERVAL}])))"
