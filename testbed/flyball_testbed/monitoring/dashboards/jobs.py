"""What each training job has, what it has used of its budget, and what it waits for."""

from __future__ import annotations

from flyball_testbed.monitoring.dashboards.elements import (
    JOULES_PER_KILOWATT_HOUR,
    LOOK_ABOVE_NONE,
    number,
    of_job,
    of_quota,
)
from flyball_testbed.monitoring.panel import Choice, Colour, Dashboard, Panel, Query, Row, Shape, Threshold, Unit

JOBS = Dashboard(
    uid="flyball-jobs",
    title="Flyball / Jobs",
    description="What each training job has, what it has used of its budget, and what it waits for.",
    variables=(Choice("namespace", "Namespace", "flyball_job_gpus"),),
    rows=(
        Row(
            "Now",
            (
                number("GPUs that train", "How many GPUs do jobs hold?", f"sum({of_job('gpus')})", width=6),
                number(
                    "Jobs that will exceed their budget",
                    "Whose energy budget will not do, going on as planned?",
                    f"sum({of_job('projected_energy_joules')} > bool {of_job('energy_budget_joules')})",
                    thresholds=LOOK_ABOVE_NONE,
                    base=Colour.GOOD,
                    width=6,
                ),
                number(
                    "Deadlines at risk",
                    "How many deadlines can no allocation meet?",
                    f"sum({of_job('deadline_at_risk')})",
                    thresholds=LOOK_ABOVE_NONE,
                    base=Colour.GOOD,
                    width=6,
                ),
                number(
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
                        Query(of_job("queue_position"), "Place", Unit.COUNT),
                        Query(of_job("gpus"), "GPUs", Unit.COUNT),
                        Query(of_job("clock_hertz"), "Clock", Unit.HERTZ),
                        Query(of_job("power_watts"), "Draw", Unit.WATTS),
                        Query(of_job("progress_ratio"), "Progress", Unit.SHARE),
                        Query(
                            f"{of_job('energy_joules_total')} / {JOULES_PER_KILOWATT_HOUR}",
                            "Used",
                            Unit.KILOWATT_HOURS,
                        ),
                        Query(
                            f"{of_job('energy_joules_total')} / {of_job('energy_budget_joules')}",
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
                    (Query(f"{of_job('gpus')} > 0", "{{job_name}}"),),
                    Unit.COUNT,
                    Shape.STACKED,
                ),
                Panel(
                    "Energy used, of the budget",
                    "Who is close to the end of the energy budget?",
                    (Query(f"{of_job('energy_joules_total')} / {of_job('energy_budget_joules')}", "{{job_name}}"),),
                    Unit.SHARE,
                    thresholds=(Threshold(0.9, Colour.LOOK), Threshold(1.0, Colour.ACT)),
                ),
                Panel(
                    "Energy at the end, of the budget",
                    "Whose budget will not do, going on as planned?",
                    (Query(f"{of_job('projected_energy_joules')} / {of_job('energy_budget_joules')}", "{{job_name}}"),),
                    Unit.SHARE,
                    thresholds=(Threshold(1.0, Colour.ACT),),
                ),
                Panel(
                    "Clock",
                    "At which clocks do the jobs' GPUs run?",
                    (Query(of_job("clock_hertz"), "{{job_name}}"),),
                    Unit.HERTZ,
                ),
                Panel(
                    "Progress",
                    "How far is each job, and does it move?",
                    (Query(of_job("progress_ratio"), "{{job_name}}"),),
                    Unit.SHARE,
                    at_most=1.0,
                ),
                Panel(
                    "Speed, of what the model expects",
                    "Can the plan be believed about the speed of jobs?",
                    (
                        Query(
                            f"{of_job('iterations_per_second')} / {of_job('predicted_iterations_per_second')}",
                            "{{job_name}}",
                        ),
                    ),
                    Unit.SHARE,
                    thresholds=(Threshold(0.85, Colour.LOOK), Threshold(1.15, Colour.LOOK)),
                ),
                Panel(
                    "Draw, of what the model expects",
                    "Can the plan be believed about the draw of jobs?",
                    (Query(f"{of_job('power_watts')} / {of_job('predicted_power_watts')}", "{{job_name}}"),),
                    Unit.SHARE,
                    thresholds=(Threshold(0.85, Colour.LOOK), Threshold(1.15, Colour.LOOK)),
                ),
            ),
        ),
        Row(
            "Queue and tenants",
            (
                Panel(
                    "Until each job that waits can expect to start",
                    "How long is the queue, in time?",
                    (Query(f"{of_job('expected_start_timestamp_seconds')} - time()", "{{job_name}}"),),
                    Unit.SECONDS,
                ),
                Panel(
                    "Batch Jobs that wait for power",
                    "What do the batch Jobs wait for that are let run by power?",
                    (Query("max by (reason) (flyball_batch_jobs_waiting)", "{{reason}}"),),
                    Unit.COUNT,
                    Shape.STACKED,
                ),
                Panel(
                    "Energy of tenants, of their quotas",
                    "Which team is close to the end of its energy?",
                    (
                        Query(
                            f"{of_quota('energy_joules')} / {of_quota('energy_budget_joules')}",
                            "{{namespace}}/{{quota}}",
                        ),
                    ),
                    Unit.SHARE,
                    thresholds=(Threshold(0.9, Colour.LOOK), Threshold(1.0, Colour.ACT)),
                ),
                Panel(
                    "GPUs of tenants",
                    "Which team has how many, and may have how many?",
                    (
                        Query(of_quota("gpus"), "{{namespace}} has"),
                        Query(of_quota("most_gpus"), "{{namespace}} may have", upper=True),
                    ),
                    Unit.COUNT,
                ),
            ),
        ),
    ),
)
