"""Whether Flyball itself is well: who leads, which agents are away, how long plans, cycles and writes take."""

from __future__ import annotations

from flyball_testbed.monitoring.dashboards.elements import BAD_ABOVE_NONE, MOST_LINES, number, quantile
from flyball_testbed.monitoring.panel import RATE_INTERVAL, Colour, Dashboard, Panel, Query, Row, Shape, Threshold, Unit

AGENTS_AND_OPERATOR = Dashboard(
    uid="flyball-health",
    title="Flyball / Agents and operator",
    description="Whether Flyball itself is well: who leads, which agents are away, how long plans, cycles and writes take.",
    rows=(
        Row(
            "Now",
            (
                number(
                    "Operators that lead",
                    "Is there a leader, and one only?",
                    "sum(flyball_leader)",
                    thresholds=(Threshold(1, Colour.GOOD), Threshold(2, Colour.ACT)),
                    base=Colour.ACT,
                ),
                number(
                    "Nodes ready",
                    "How many nodes follow their grants?",
                    'sum(max by (state) (flyball_nodes{state="ready"}))',
                ),
                number(
                    "Agents without operator",
                    "How many agents hold or lower limits by themselves?",
                    'sum(flyball_agent_mode{mode=~"Failsafe|Holding"})',
                    thresholds=BAD_ABOVE_NONE,
                    base=Colour.GOOD,
                ),
                number(
                    "Journals not writable",
                    "How many agents raise no limit because their disk fails?",
                    "sum(1 - flyball_agent_journal_ok)",
                    thresholds=BAD_ABOVE_NONE,
                    base=Colour.GOOD,
                ),
                number(
                    "GPUs not governed",
                    "How many GPUs cannot be read or do not take their limit?",
                    'count(flyball_gpu_up) - (count(flyball_gpu_health{reason=~"Governed|NotPersistent|ClockNotTaken"})'
                    " or count(flyball_gpu_up) * 0)",
                    thresholds=BAD_ABOVE_NONE,
                    base=Colour.GOOD,
                ),
                number(
                    "Oldest copy",
                    "How old is the oldest of the leader's local copies?",
                    "max(flyball_informer_age_seconds)",
                    Unit.SECONDS,
                    thresholds=(Threshold(90, Colour.LOOK), Threshold(150, Colour.ACT)),
                    base=Colour.GOOD,
                ),
            ),
        ),
        Row(
            "Agents",
            (
                Panel(
                    "Nodes by state",
                    "Which nodes can be planned with, and why not the others?",
                    (Query("max by (state) (flyball_nodes) > 0", "{{state}}"),),
                    Unit.COUNT,
                    Shape.STACKED,
                ),
                Panel(
                    "GPUs by health",
                    "Does every GPU take what it is told?",
                    (Query("count by (reason) (flyball_gpu_health)", "{{reason}}"),),
                    Unit.COUNT,
                    Shape.STACKED,
                ),
                Panel(
                    "Limits that others changed, in the last ten minutes",
                    "Does somebody else set power limits?",
                    (Query(f"topk({MOST_LINES}, increase(flyball_agent_drift_corrections_total[10m]))", "{{node}}"),),
                    Unit.COUNT,
                ),
                Panel(
                    "Shortest lease, longest silence",
                    "How near are agents to their failsafe, and does every one still make rounds?",
                    (
                        Query("min(flyball_agent_lease_remaining_seconds)", "lease that is left, shortest"),
                        Query("max(flyball_agent_last_round_age_seconds)", "age of the last round, longest"),
                    ),
                    Unit.SECONDS,
                ),
                Panel(
                    "Time to set a limit",
                    "How quickly do GPUs take a limit?",
                    (
                        Query(
                            f"sum by (op) (rate(flyball_agent_apply_seconds_total[{RATE_INTERVAL}]))"
                            f" / sum by (op) (rate(flyball_agent_apply_total[{RATE_INTERVAL}]))",
                            "{{op}}",
                        ),
                    ),
                    Unit.SECONDS,
                ),
                Panel(
                    "Rounds that were late or failed",
                    "Are agents short of CPU, or broken?",
                    (
                        Query(f"sum(rate(flyball_agent_late_rounds_total[{RATE_INTERVAL}]))", "late"),
                        Query(f"sum(rate(flyball_agent_failed_rounds_total[{RATE_INTERVAL}]))", "failed"),
                        Query(
                            f"sum(rate(flyball_agent_nvml_errors_total[{RATE_INTERVAL}]))"
                            " or sum(flyball_agent_rounds_total) * 0",
                            "driver calls failed",
                        ),
                    ),
                    Unit.PER_SECOND,
                ),
            ),
        ),
        Row(
            "Operator",
            (
                Panel(
                    "From a wanted change to the last acknowledgement",
                    "How long does the cluster take to follow?",
                    (
                        Query(quantile(0.5, "plan_converge_seconds"), "half of them within"),
                        Query(quantile(0.99, "plan_converge_seconds"), "99 % within"),
                    ),
                    Unit.SECONDS,
                ),
                Panel(
                    "Plans and cycles",
                    "Does planning keep up, and is the loop quick?",
                    (
                        Query(quantile(0.99, "plan_seconds"), "99 % of plans within"),
                        Query(quantile(0.99, "cycle_seconds"), "99 % of cycles within"),
                    ),
                    Unit.SECONDS,
                ),
                Panel(
                    "Writes to the API server",
                    "What does Flyball ask of the API server?",
                    (Query(f"sum by (kind) (rate(flyball_plan_actions_total[{RATE_INTERVAL}])) > 0", "{{kind}}"),),
                    Unit.PER_SECOND,
                    Shape.STACKED,
                ),
                Panel(
                    "Answers of the API server",
                    "How quickly does it answer?",
                    (
                        Query(quantile(0.5, "api_write_seconds"), "half of them within"),
                        Query(quantile(0.99, "api_write_seconds"), "99 % within"),
                    ),
                    Unit.SECONDS,
                ),
                Panel(
                    "What went wrong",
                    "Do plans, cycles or writes fail?",
                    (
                        Query(f"sum(rate(flyball_plan_failures_total[{RATE_INTERVAL}]))", "plans"),
                        Query(f"sum(rate(flyball_cycle_failures_total[{RATE_INTERVAL}]))", "cycles"),
                        Query(
                            f'sum(rate(flyball_api_write_seconds_count{{outcome="refused"}}[{RATE_INTERVAL}]))',
                            "writes refused (overtaken by others, too)",
                        ),
                        Query(
                            f'sum(rate(flyball_api_write_seconds_count{{outcome="unknown"}}[{RATE_INTERVAL}]))',
                            "writes unanswered",
                        ),
                    ),
                    Unit.PER_SECOND,
                ),
                Panel(
                    "Memory of the operators",
                    "Does an operator grow towards its limit?",
                    (
                        Query(
                            "process_resident_memory_bytes * on (instance) group_left (version) flyball_operator_info",
                            "{{instance}} ({{version}})",
                        ),
                    ),
                    Unit.BYTES,
                ),
            ),
        ),
    ),
)
