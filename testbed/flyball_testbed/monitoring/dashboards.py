"""The dashboards: one list of panels, from which Grafana's and vmui's files and the pictures of the documents are made.

No query needs a certain scrape configuration: of the labels that one adds, only `instance` is used, which each has.
The operators' series are taken by `max by`: after a change of leaders two of them may have a cap's series for a moment.
Where nothing is known a panel is empty, and never zero.
"""

from __future__ import annotations

from flyball_testbed.monitoring.panel import (
    RANGE,
    RATE_INTERVAL,
    Choice,
    Colour,
    Constant,
    Dashboard,
    Panel,
    Query,
    Row,
    Shape,
    Threshold,
    Unit,
)

JOULES_PER_KILOWATT_HOUR = "3.6e6"
BAD_ABOVE_NONE = (Threshold(1e-9, Colour.ACT),)
LOOK_ABOVE_NONE = (Threshold(1e-9, Colour.LOOK),)
# Of many nodes or jobs, so many lines can still be told apart.
MOST_LINES = 12


def _number(
    title: str,
    question: str,
    expr: str,
    unit: Unit = Unit.COUNT,
    *,
    thresholds: tuple[Threshold, ...] = (),
    base: Colour | None = None,
    width: int = 4,
) -> Panel:
    return Panel(title, question, (Query(expr, title),), unit, Shape.NUMBER, thresholds, base, width)


def _of_job(metric: str) -> str:
    return f'max by (namespace, job_name) (flyball_job_{metric}{{namespace=~"$namespace"}})'


def _quantile(share: float, histogram: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share:g}, sum by ({labels}) (rate(flyball_{histogram}_bucket[{RATE_INTERVAL}])))"


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
                _number(
                    "Caps not enforced",
                    "Do the limits under any cap add up to more than it allows?",
                    "sum(1 - max by (cap) (flyball_cap_enforced))",
                    thresholds=BAD_ABOVE_NONE,
                    base=Colour.GOOD,
                ),
                _number(
                    "Measured above caps",
                    "How many watts too many are drawn right now?",
                    "sum(clamp_min(max by (cap) (flyball_cap_measured_watts - flyball_cap_watts), 0))",
                    Unit.WATTS,
                    thresholds=BAD_ABOVE_NONE,
                    base=Colour.GOOD,
                ),
                _number(
                    "Tightest headroom",
                    "What share of the tightest cap is not committed yet?",
                    "min(max by (cap) (flyball_cap_headroom_watts / flyball_cap_watts))",
                    Unit.SHARE,
                    thresholds=(Threshold(0.0, Colour.GOOD),),
                    base=Colour.ACT,
                ),
                _number(
                    "GPU draw",
                    "What do all GPUs draw together?",
                    'sum(flyball_gpu_power_watts{kind="average"})',
                    Unit.WATTS,
                ),
                _number(
                    "Limits allow",
                    "What would all GPUs draw at their limits, at most?",
                    "sum(flyball_agent_held_watts)",
                    Unit.WATTS,
                ),
                _number(
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

JOBS = Dashboard(
    uid="flyball-jobs",
    title="Flyball / Jobs",
    description="What each training job has, what it has used of its budget, and what it waits for.",
    variables=(Choice("namespace", "Namespace", "flyball_job_gpus"),),
    rows=(
        Row(
            "Now",
            (
                _number("GPUs that train", "How many GPUs do jobs hold?", f"sum({_of_job('gpus')})", width=6),
                _number(
                    "Jobs that will exceed their budget",
                    "Whose energy budget will not do, going on as planned?",
                    f"sum({_of_job('projected_energy_joules')} > bool {_of_job('energy_budget_joules')})",
                    thresholds=LOOK_ABOVE_NONE,
                    base=Colour.GOOD,
                    width=6,
                ),
                _number(
                    "Deadlines at risk",
                    "How many deadlines can no allocation meet?",
                    f"sum({_of_job('deadline_at_risk')})",
                    thresholds=LOOK_ABOVE_NONE,
                    base=Colour.GOOD,
                    width=6,
                ),
                _number(
                    "Jobs without series",
                    "Are there more jobs than these panels show?",
                    "max(flyball_job_series_left_out)",
                    thresholds=LOOK_ABOVE_NONE,
                    base=Colour.GOOD,
                    width=6,
                ),
            ),
        ),
        Row(
            "Each job",
            (
                Panel(
                    "Jobs",
                    "What does each job have, how far is it, and why?",
                    (
                        Query(
                            'max by (namespace, job_name, state) (flyball_job_state{namespace=~"$namespace"})', "State"
                        ),
                        Query(_of_job("gpus"), "GPUs", Unit.COUNT),
                        Query(_of_job("clock_hertz"), "Clock", Unit.HERTZ),
                        Query(_of_job("power_watts"), "Draw", Unit.WATTS),
                        Query(_of_job("progress_ratio"), "Progress", Unit.SHARE),
                        Query(
                            f"{_of_job('energy_joules_total')} / {JOULES_PER_KILOWATT_HOUR}",
                            "Used",
                            Unit.KILOWATT_HOURS,
                        ),
                        Query(
                            f"{_of_job('energy_joules_total')} / {_of_job('energy_budget_joules')}",
                            "Of its budget",
                            Unit.SHARE,
                        ),
                    ),
                    Unit.COUNT,
                    Shape.TABLE,
                    width=24,
                ),
                Panel(
                    "Jobs by state",
                    "What do jobs wait for?",
                    (Query("max by (state) (flyball_jobs)", "{{state}}"),),
                    Unit.COUNT,
                    Shape.STACKED,
                ),
                Panel(
                    "GPUs of each job",
                    "Who was given more, and who had to give?",
                    (Query(f"{_of_job('gpus')} > 0", "{{job_name}}"),),
                    Unit.COUNT,
                    Shape.STACKED,
                ),
                Panel(
                    "Energy used, of the budget",
                    "Who is close to the end of the energy budget?",
                    (Query(f"{_of_job('energy_joules_total')} / {_of_job('energy_budget_joules')}", "{{job_name}}"),),
                    Unit.SHARE,
                    thresholds=(Threshold(0.9, Colour.LOOK), Threshold(1.0, Colour.ACT)),
                ),
                Panel(
                    "Energy at the end, of the budget",
                    "Whose budget will not do, going on as planned?",
                    (
                        Query(
                            f"{_of_job('projected_energy_joules')} / {_of_job('energy_budget_joules')}", "{{job_name}}"
                        ),
                    ),
                    Unit.SHARE,
                    thresholds=(Threshold(1.0, Colour.ACT),),
                ),
                Panel(
                    "Clock",
                    "At which clocks do the jobs' GPUs run?",
                    (Query(_of_job("clock_hertz"), "{{job_name}}"),),
                    Unit.HERTZ,
                ),
                Panel(
                    "Progress",
                    "How far is each job, and does it move?",
                    (Query(_of_job("progress_ratio"), "{{job_name}}"),),
                    Unit.SHARE,
                    at_most=1.0,
                ),
                Panel(
                    "Speed, of what the model expects",
                    "Can the plan be believed about the speed of jobs?",
                    (
                        Query(
                            f"{_of_job('iterations_per_second')} / {_of_job('predicted_iterations_per_second')}",
                            "{{job_name}}",
                        ),
                    ),
                    Unit.SHARE,
                    thresholds=(Threshold(0.85, Colour.LOOK), Threshold(1.15, Colour.LOOK)),
                ),
                Panel(
                    "Draw, of what the model expects",
                    "Can the plan be believed about the draw of jobs?",
                    (Query(f"{_of_job('power_watts')} / {_of_job('predicted_power_watts')}", "{{job_name}}"),),
                    Unit.SHARE,
                    thresholds=(Threshold(0.85, Colour.LOOK), Threshold(1.15, Colour.LOOK)),
                ),
            ),
        ),
    ),
)

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
                _number(
                    "Energy used by training", "What did training use?",
                    f"{_USED} / {JOULES_PER_KILOWATT_HOUR}", Unit.KILOWATT_HOURS, width=4,
                ),
                _number(
                    "Energy saved", "How much less is that than at the highest clock?",
                    _SAVED_KILOWATT_HOURS, Unit.KILOWATT_HOURS, width=5,
                ),
                _number(
                    "Share saved", "What share of the energy at the highest clock was saved?",
                    f"1 - {_USED} / {_AT_HIGHEST}", Unit.SHARE, width=5,
                ),
                _number(
                    "Money saved", "What is the saved energy worth, at the price that is set?",
                    f"{_SAVED_KILOWATT_HOURS} * $price", Unit.MONEY, width=5,
                ),
                _number(
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
            ),
        ),
    ),
)  # fmt: skip

AGENTS_AND_OPERATOR = Dashboard(
    uid="flyball-health",
    title="Flyball / Agents and operator",
    description="Whether Flyball itself is well: who leads, which agents are away, how long plans, cycles and writes take.",
    rows=(
        Row(
            "Now",
            (
                _number(
                    "Operators that lead",
                    "Is there a leader, and one only?",
                    "sum(flyball_leader)",
                    thresholds=(Threshold(1, Colour.GOOD), Threshold(2, Colour.ACT)),
                    base=Colour.ACT,
                ),
                _number(
                    "Nodes ready",
                    "How many nodes follow their grants?",
                    'sum(max by (state) (flyball_nodes{state="ready"}))',
                ),
                _number(
                    "Agents without operator",
                    "How many agents hold or lower limits by themselves?",
                    'sum(flyball_agent_mode{mode=~"Failsafe|Holding"})',
                    thresholds=BAD_ABOVE_NONE,
                    base=Colour.GOOD,
                ),
                _number(
                    "Journals not writable",
                    "How many agents raise no limit because their disk fails?",
                    "sum(1 - flyball_agent_journal_ok)",
                    thresholds=BAD_ABOVE_NONE,
                    base=Colour.GOOD,
                ),
                _number(
                    "GPUs not governed",
                    "How many GPUs cannot be read or do not take their limit?",
                    'count(flyball_gpu_up) - (count(flyball_gpu_health{reason=~"Governed|NotPersistent|ClockNotTaken"})'
                    " or count(flyball_gpu_up) * 0)",
                    thresholds=BAD_ABOVE_NONE,
                    base=Colour.GOOD,
                ),
                _number(
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
                        Query(_quantile(0.5, "plan_converge_seconds"), "half of them within"),
                        Query(_quantile(0.99, "plan_converge_seconds"), "99 % within"),
                    ),
                    Unit.SECONDS,
                ),
                Panel(
                    "Plans and cycles",
                    "Does planning keep up, and is the loop quick?",
                    (
                        Query(_quantile(0.99, "plan_seconds"), "99 % of plans within"),
                        Query(_quantile(0.99, "cycle_seconds"), "99 % of cycles within"),
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
                        Query(_quantile(0.5, "api_write_seconds"), "half of them within"),
                        Query(_quantile(0.99, "api_write_seconds"), "99 % within"),
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

DASHBOARDS = (CLUSTER_POWER, JOBS, SAVINGS, AGENTS_AND_OPERATOR)
