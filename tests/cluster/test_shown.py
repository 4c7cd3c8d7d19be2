"""What `kubectl get`, `-o wide` and `describe` show of a job in every situation, as files to be read by people.

Where a change is meant, FLYBALL_WRITE_SHOWN=1 writes the files anew.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from flyball_api.energy.frontier import FrontierPoint, Tradeoff
from flyball_api.energy_aware_job import BackOff, IncarnationFailure, read_energy_aware_job
from flyball_api.values.units import MilliwattsPerGpu
from flyball_operator.jobs.runs.lifecycle import JobPhase, JobStep
from flyball_operator.jobs.runs.memory import Refusal
from flyball_operator.jobs.runs.progress import JobProgress
from flyball_operator.jobs.runs.queue import PlanPlace
from flyball_operator.jobs.starts.obstacles import StartObstacle
from flyball_operator.jobs.status import JobFacts, job_status
from flyball_planner.snapshot import Admission, JobDecision

from tests.support.control_plane import GROUP, IsolatedCluster
from tests.support.operator_objects import NOW, Json, as_stored, decision, incarnation_view
from tests.support.site_bench import job_manifest

SHOWN = Path(__file__).parent / "shown"
UID = "uid-train"
TRADEOFF = Tradeoff("NVIDIA-A100-SXM4-40GB", 32, FrontierPoint(8, 1410, 190, 520), FrontierPoint(8, 855, 270, 390))
PLACES = (("node-000", 4), ("node-001", 4))
PLAN = decision(UID, *PLACES)
APPLIED = MilliwattsPerGpu(300_000)
CURRENT = incarnation_view(UID, 2, *PLACES)
HALF = JobProgress(
    iterations=500.0,
    iterations_per_second=2.0,
    last_report=NOW,
    watts=2000.0,
    clock_megahertz=1200,
    settled_millijoules=3_600_000_000,
    attained_gpu_seconds=1800.0,
)
# Of a job without pods nothing is reported, and nothing is drawn.
AT_REST: dict[str, Any] = {
    "progress": replace(HALF, iterations_per_second=0.0, watts=0.0, clock_megahertz=0),
    "drawn_milliwatts": 0,
    "applied_milliwatts": 0,
    "granted": False,
}
RUNNING = JobStep(JobPhase.RUNNING, CURRENT, bound=True)
STARTING = JobStep(JobPhase.STARTING, CURRENT)
WAITING = JobStep(JobPhase.WAITING)
CRASH = IncarnationFailure(2, NOW, True, "OOMKilled", "CUDA out of memory", "train-2-0-abcde", "node-000", 137)
RESTART = BackOff(NOW, "RestartBackOff", "incarnation 2: pod train-2-0-abcde on node-000 ended with exit code 137", 1)
TOGGLED = BackOff(
    NOW,
    "PowerBackOff",
    "paused less than minSecondsBetweenResizes 600 s after its last start: cap row leaves 0 W of the 800 W that it takes",
    1,
)
TIMED_OUT = BackOff(
    NOW,
    "StartTimedOut",
    "not running 600 s after its start: QuotaExceeded: pods are forbidden: exceeded quota: small",
    3,
)


NEXT = PlanPlace(2, 17, NOW + timedelta(minutes=25), "when 2 jobs have ended, the last of them team/bert", NOW)
UNKNOWN = PlanPlace(
    17, 17, None, "1 job with GPUs has no end that is known (spec.training.iterations, or too far away)", NOW
)


def waits(admission: Admission, explanation: str) -> dict[str, Any]:
    return {"decision": JobDecision(UID, None, admission, explanation), "step": WAITING, **AT_REST}


def refused(reason: str, message: str) -> dict[str, Any]:
    return {"refusal": Refusal(reason, message), "decision": None, "step": WAITING, **AT_REST}


# Name, spec, facts.
SITUATIONS: list[tuple[str, Json, dict[str, Any]]] = [
    ("running", {}, {}),
    ("estimated", {}, {"progress": replace(HALF, estimated=True, last_report=None, watts=0.0)}),
    (
        "waiting-gpus",
        {},
        {**waits(Admission.WAITING_FOR_GPUS, "Needs 8 GPUs in whole cells; 4 GPUs are free."), "queue": NEXT},
    ),
    (
        "waiting-power",
        {},
        {**waits(Admission.WAITING_FOR_POWER, "Cap row leaves 100 W of the 1.60 kW that it takes."), "queue": UNKNOWN},
    ),
    (
        "power-back-off",
        {},
        {"decision": None, "step": WAITING, "back_off": TOGGLED, "gives_back": True, **AT_REST},
    ),
    ("iterations-lost", {}, {"progress": replace(HALF, reported_by=2, iterations_lost=120)}),
    ("preempted", {}, waits(Admission.PREEMPTED, "Paused for team/urgent, priority 10 over 0.")),
    ("suspended", {"suspend": True}, {"decision": None, "step": WAITING, **AT_REST}),
    ("starting", {}, {"step": STARTING, **AT_REST}),
    (
        "unschedulable",
        {},
        {
            "step": STARTING,
            **AT_REST,
            "obstacle": StartObstacle("Unschedulable", 'pod train-2-0-abcde: persistentvolumeclaim "data" not found'),
        },
    ),
    (
        "image",
        {},
        {
            "step": replace(STARTING, bound=True),
            **AT_REST,
            "granted": True,
            "obstacle": StartObstacle(
                "ImagePullFailed", "pod train-2-0-abcde on node-000: ImagePullBackOff: Back-off pulling image"
            ),
        },
    ),
    (
        "lost-node",
        {},
        {
            "obstacle": StartObstacle(
                "NodeLost",
                "pod train-2-1-abcde is on node node-001, which is not ready; the job leaves it after a while",
            )
        },
    ),
    (
        "crashed",
        {},
        {
            "step": JobStep(JobPhase.FAILED, CURRENT),
            "restarts": 1,
            "back_off": RESTART,
            "failures": (CRASH,),
            **AT_REST,
        },
    ),
    (
        "timed-out",
        {},
        {
            "decision": None,
            "step": WAITING,
            "back_off": TIMED_OUT,
            "gives_back": True,
            "start_attempts": 3,
            **AT_REST,
        },
    ),
    ("no-node", {}, refused("NoNodeFits", "0 of 4 nodes fit: 3 have taint gpu=reserved, 1 has 7 of 8 GPUs")),
    ("too-large", {}, refused("ExceedsCluster", "needs 64 GPUs, and the cluster has 32 in 4 nodes")),
    (
        "budget-spent",
        {"energy": {"budgetKilojoules": 3000, "onExhausted": "Suspend"}},
        {"decision": None, "step": WAITING, **AT_REST},
    ),
    ("late", {"deadline": "2030-06-01T12:01:00Z"}, {"decision": replace(PLAN, deadline_at_risk=True)}),
    (
        "out-of-range",
        {"clocks": {"minMegahertz": 9999}},
        {"bounds_beyond": "clocks.minMegahertz 9999 is above 1410 MHz"},
    ),
    (
        "succeeded",
        {},
        {
            "step": JobStep(JobPhase.COMPLETE, CURRENT),
            "outcome": "Succeeded",
            "outcome_message": "all ranks of incarnation 2 ended with exit code 0",
            **AT_REST,
        },
    ),
    (
        "failed",
        {},
        {
            "step": JobStep(JobPhase.FAILED, CURRENT),
            "outcome": "Failed",
            "outcome_message": "pod train-2-0-abcde on node-000 ended with exit code 137 (OOMKilled); "
            "failurePolicy.maxRestarts 3 allows no further restart",
            "restarts": 3,
            "failures": (CRASH,),
            **AT_REST,
        },
    ),
]
# Without those that differ from another one in a word.
DESCRIBED = [name for name, _, _ in SITUATIONS if name not in ("estimated", "waiting-power", "starting", "too-large")]


def kubectl(cluster: IsolatedCluster, *arguments: str) -> str:
    plane = cluster.devcluster.control_plane
    command = [str(plane.kubectl), "--kubeconfig", str(plane.kubeconfig()), "-n", cluster.namespace, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def table(output: str) -> str:
    """kubectl's table with cells that do not depend on each other's width, and without ages."""
    header, *rows = output.splitlines()
    starts = [found.start() for found in re.finditer(r"\S+", header)]
    ranges = list(zip(starts, [*starts[1:], None], strict=True))
    names = [header[begin:end].strip() for begin, end in ranges]
    lines = [" | ".join(names)]
    for row in rows:
        cells = [
            "-" if name == "AGE" else row[begin:end].strip() for name, (begin, end) in zip(names, ranges, strict=True)
        ]
        lines.append(" | ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def described(output: str, namespace: str) -> str:
    """A description without what is another one at each run."""
    moving = re.compile(r"^( *(?:Creation Timestamp|Resource Version|UID|Generation): +).*$", re.MULTILINE)
    return moving.sub(r"\1-", output).replace(namespace, "team")


def test_what_kubectl_shows(cluster: IsolatedCluster) -> None:
    jobs = cluster.path("energyawarejobs", group=GROUP)
    base = JobFacts(
        HALF, RUNNING, PLAN, 7, True, 0, NOW, applied_milliwatts=APPLIED, highest_incarnation=2, pace_band=(0.8, 1.25)
    )
    for name, spec, facts in SITUATIONS:
        made = cluster.api.create(jobs, job_manifest(name, cluster.namespace, gpus=(8, 8), iterations=1000, **spec))
        told = replace(base, **facts)
        status = job_status(read_energy_aware_job(made), told)
        stored = as_stored(msgspec.structs.replace(status, tradeoff=None if told.outcome else TRADEOFF))
        cluster.api.patch(f"{jobs}/{name}/status", {"status": stored})
    shown = {
        "get.txt": table(kubectl(cluster, "get", "eaj")),
        "get-wide.txt": table(kubectl(cluster, "get", "eaj", "-o", "wide")),
        **{
            f"describe-{name}.txt": described(kubectl(cluster, "describe", "eaj", name), cluster.namespace)
            for name in DESCRIBED
        },
    }
    if os.environ.get("FLYBALL_WRITE_SHOWN"):
        SHOWN.mkdir(exist_ok=True)
        for file, text in shown.items():
            (SHOWN / file).write_text(text)
    for file, text in shown.items():
        assert text == (SHOWN / file).read_text(), f"{file}: FLYBALL_WRITE_SHOWN=1 writes it anew where that is meant"
