"""What a watching user sees of jobs that come and go, and when: a part of `churn`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from flyball_api.energy_aware_job import read_energy_aware_job
from flyball_api.workloads import read_pod


@dataclass(slots=True)
class Seen:
    """What was seen of one job, in seconds of the monotonic clock; 0: not yet."""

    submitted: float = 0.0
    pods_made: float = 0.0
    pods_placed: float = 0.0
    pods_ready: float = 0.0
    shown_ready: float = 0.0
    pods_ended: float = 0.0
    shown_ended: float = 0.0
    decided: float = 0.0
    status_at: float = 0.0  # its last status
    oldest_figures: float = 0.0  # seconds between two statuses while it ran


@dataclass
class Watch:
    """Notes when pods and statuses change, as a watching user would see it."""

    jobs: dict[str, Seen] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    pods: dict[str, str] = field(default_factory=dict)  # of each job, the pod that was ready last

    def job(self, raw: dict[str, Any]) -> str:
        """Takes in a job's status."""
        job, now = read_energy_aware_job(raw), time.monotonic()
        name, admitted, ready = job.name, job.conditions.get("Admitted"), job.has("Ready")
        seen = self.jobs.setdefault(name, Seen())
        if not seen.decided and admitted is not None and admitted.reason != "Planning":
            seen.decided = now
        if ready and not seen.shown_ready:
            seen.shown_ready = now
        if job.finished and not seen.shown_ended:
            seen.shown_ended = now
        if name in self.running and seen.status_at:
            seen.oldest_figures = max(seen.oldest_figures, now - seen.status_at)
        seen.status_at = now
        if ready:
            self.running.add(name)
        else:
            self.running.discard(name)
        return name

    def pod(self, raw: dict[str, Any]) -> str:
        """Takes in a pod."""
        pod, now = read_pod(raw), time.monotonic()
        name = pod.job_name
        seen = self.jobs.setdefault(name, Seen())
        seen.pods_made = seen.pods_made or now
        if pod.node:
            seen.pods_placed = seen.pods_placed or now
        if pod.ready:
            self.pods[name] = pod.name
            seen.pods_ready = seen.pods_ready or now
        if pod.finished:
            seen.pods_ended = seen.pods_ended or now
        return name
