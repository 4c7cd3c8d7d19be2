"""Whether every cap holds, how much room it leaves, and who uses the watts."""

from __future__ import annotations

from flyball_testbed.monitoring.dashboards.elements import BAD_ABOVE_NONE, LOOK_ABOVE_NONE, MOST_LINES, number
from flyball_testbed.monitoring.panel import (
    RATE_INTERVAL,
    Choice,
    Colour,
    Dashboard,
    Panel,
    Query,
    Row,
    Shape,
    Threshold,
    Unit,
)

CAP = 'max by (cap) (flyball_cap_watts{cap=~"$cap"})'

CLUSTER_POWER = Dashboard(
    uid="flyball-power",
    title="Flyball / Cluster power",
    description="Whether every cap holds, how much room it leaves, and who uses the watts.",
    variables=(Choice("cap", "Cap", "flyball_cap_watts"),),
    rows=(
        Row(
            "Now",
            (
                number(
                    "Caps not enforced",
                    "Do the limits under any cap add up to more than it allows?",
                    "sum(1 - max by (cap) (flyball_cap_enforced))",
                    thresholds=BAD_ABOVE_NONE,
                    base=Colour.GOOD,
                ),
                number(
                    "Measured above caps",
                    "How many watts too many are drawn right now?",
                    "sum(clamp_min(max by (cap) (flyball_cap_measured_watts - flyball_cap_watts), 0))",
                    Unit.WATTS,
                    thresholds=BAD_ABOVE_NONE,
                    base=Colour.GOOD,
                ),
                number(
                    "Tightest headroom",
                    "What share of the tightest cap is not committed yet?",
                    "min(max by (cap) (flyball_cap_headroom_watts / flyball_cap_watts))",
                    Unit.SHARE,
                    thresholds=(Threshold(0.0, Colour.GOOD),),
                    base=Colour.ACT,
                ),
                number(
                    "GPU draw",
                    "What do all GPUs draw together?",
                    'sum(flyball_gpu_power_watts{kind="average"})',
                    Unit.WATTS,
                ),
                number(
                    "Limits allow",
                    "What would all GPUs draw at their limits, at most?",
                    "sum(flyball_agent_held_watts)",
                    Unit.WATTS,
                ),
                number(
                    "Nodes not governed",
                    "On how many nodes are limits not known to be in force?",
                    'sum(max by (state) (flyball_nodes{state!~"ready|unschedulable"}))',
                    thresholds=LOOK_ABOVE_NONE,
                    base=Colour.GOOD,
                ),
            ),
        ),
        Row(
            "Caps",
            (
                Panel(
                    "Cap $cap",
                    "Does what limits allow stay below the cap, and how much of it is drawn?",
                    (
                        Query(CAP, "cap", colour=Colour.ACT, upper=True),
                        Query(
                            'max by (cap) (flyball_cap_committed_watts{cap=~"$cap"})', "committed", colour=Colour.LOOK
                        ),
                        Query('max by (cap) (flyball_cap_measured_watts{cap=~"$cap"})', "measured", colour=Colour.GOOD),
                    ),
                    Unit.WATTS,
                    width=8,
                    repeated="cap",
                ),
                Panel(
                    "Committed share of each cap",
                    "Which row is tight?",
                    (Query(f'max by (cap) (flyball_cap_committed_watts{{cap=~"$cap"}}) / {CAP}', "{{cap}}"),),
                    Unit.SHARE,
                    thresholds=(Threshold(1.0, Colour.ACT),),
                ),
                Panel(
                    "Time above each cap, in the last hour",
                    "Was more measured than a cap allows, and for how long?",
                    (
                        Query(
                            'max by (cap) (increase(flyball_cap_overshoot_seconds_total{cap=~"$cap"}[1h]))', "{{cap}}"
                        ),
                    ),
                    Unit.SECONDS,
                    thresholds=BAD_ABOVE_NONE,
                ),
            ),
        ),
        Row(
            "Who uses the watts",
            (
                Panel(
                    "Draw by job",
                    "Which jobs use the watts, and how much goes to GPUs that no pod holds?",
                    (
                        Query(
                            f"topk({MOST_LINES}, label_replace(sum by (namespace, job_name)"
                            f" (rate(flyball_pod_gpu_energy_joules_total[{RATE_INTERVAL}])),"
                            ' "job_name", "(no job)", "job_name", ""))',
                            "{{namespace}}/{{job_name}}",
                        ),
                        Query(f"sum(rate(flyball_idle_energy_joules_total[{RATE_INTERVAL}]))", "idle GPUs"),
                    ),
                    Unit.WATTS,
                    Shape.STACKED,
                ),
                Panel(
                    "Draw of pods outside Flyball",
                    "Whose pods use watts that no job of Flyball's gets?",
                    (
                        Query(
                            f"topk({MOST_LINES}, sum by (namespace, owner)"
                            f" (rate(flyball_owner_energy_joules_total[{RATE_INTERVAL}])))",
                            "{{namespace}}/{{owner}}",
                        ),
                    ),
                    Unit.WATTS,
                    Shape.STACKED,
                ),
                Panel(
                    "Granted, held and drawn",
                    "How much of what nodes were granted is in force, and how much of that is used?",
                    (
                        Query("sum(flyball_agent_grant_watts)", "granted"),
                        Query("sum(flyball_agent_held_watts)", "limits allow"),
                        Query('sum(flyball_gpu_power_watts{kind="average"})', "drawn"),
                    ),
                    Unit.WATTS,
                ),
                Panel(
                    "Draw by node",
                    "Which nodes draw the most?",
                    (
                        Query(
                            f'topk({MOST_LINES}, sum by (node) (flyball_gpu_power_watts{{kind="average"}}))',
                            "{{node}}",
                        ),
                    ),
                    Unit.WATTS,
                ),
                Panel(
                    "Hottest GPU of each node",
                    "Does heat hold clocks down anywhere?",
                    (Query(f"topk({MOST_LINES}, max by (node) (flyball_gpu_temperature_celsius))", "{{node}}"),),
                    Unit.CELSIUS,
                ),
            ),
        ),
    ),
)
