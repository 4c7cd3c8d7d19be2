"""What training used, against the same work at the highest clock."""

from __future__ import annotations

from flyball_testbed.monitoring.dashboards.elements import JOULES_PER_KILOWATT_HOUR, number
from flyball_testbed.monitoring.panel import RANGE, RATE_INTERVAL, Constant, Dashboard, Panel, Query, Row, Shape, Unit

_USED = f"sum(increase(flyball_training_energy_joules_total[{RANGE}]))"
_AT_HIGHEST = f"sum(increase(flyball_training_highest_clock_energy_joules_total[{RANGE}]))"
_SAVED_KILOWATT_HOURS = f"({_AT_HIGHEST} - {_USED}) / {JOULES_PER_KILOWATT_HOUR}"

SAVINGS = Dashboard(
    uid="flyball-savings",
    title="Flyball / Savings",
    description="What training used, against the same work at the highest clock. Price and carbon are yours to set.",
    variables=(
        Constant("price", "Price of a kWh", 0.2),
        Constant("carbon", "Grams of CO2 a kWh", 400),
    ),
    rows=(
        Row(
            "In the time shown",
            (
                number(
                    "Energy used by training", "What did training use?",
                    f"{_USED} / {JOULES_PER_KILOWATT_HOUR}", Unit.KILOWATT_HOURS, width=4,
                ),
                number(
                    "Energy saved", "How much less is that than at the highest clock?",
                    _SAVED_KILOWATT_HOURS, Unit.KILOWATT_HOURS, width=5,
                ),
                number(
                    "Share saved", "What share of the energy at the highest clock was saved?",
                    f"1 - {_USED} / {_AT_HIGHEST}", Unit.SHARE, width=5,
                ),
                number(
                    "Money saved", "What is the saved energy worth, at the price that is set?",
                    f"{_SAVED_KILOWATT_HOURS} * $price", Unit.MONEY, width=5,
                ),
                number(
                    "CO2 saved", "How much less was emitted, at the carbon that is set?",
                    f"{_SAVED_KILOWATT_HOURS} * $carbon / 1000", Unit.KILOGRAMS, width=5,
                ),
            ),
        ),
        Row(
            "Over time",
            (
                Panel(
                    "Draw of training, and at the highest clock",
                    "What do lower clocks save, from moment to moment?",
                    (
                        Query(f"sum(rate(flyball_training_energy_joules_total[{RATE_INTERVAL}]))", "as it is"),
                        Query(
                            f"sum(rate(flyball_training_highest_clock_energy_joules_total[{RATE_INTERVAL}]))",
                            "the same work at the highest clock",
                        ),
                    ),
                    Unit.WATTS,
                ),
                Panel(
                    "Where the energy goes",
                    "How much do GPUs draw that train nothing?",
                    (
                        Query(
                            f"sum(rate(flyball_pod_gpu_energy_joules_total[{RATE_INTERVAL}]))", "GPUs that pods hold"
                        ),
                        Query(f"sum(rate(flyball_idle_energy_joules_total[{RATE_INTERVAL}]))", "idle GPUs"),
                        Query(f"sum(rate(flyball_unattributed_energy_joules_total[{RATE_INTERVAL}]))", "not known"),
                    ),
                    Unit.WATTS,
                    Shape.STACKED,
                ),
                Panel(
                    "The grid's signal",
                    "What does energy cost or emit now, for which work that can wait is put off?",
                    (Query("max by (unit) (flyball_grid_signal)", "{{unit}}"),),
                    Unit.COUNT,
                ),
                Panel(
                    "How far the grid's signal reaches",
                    "Does somebody keep the signal up to date?",
                    (Query("max by (unit) (flyball_grid_signal_end_timestamp_seconds) - time()", "{{unit}}"),),
                    Unit.SECONDS,
                ),
            ),
        ),
    ),
)  # fmt: skip
