"""Makes the parts of a leader's term from the settings; nothing of an earlier term goes into them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from flyball_kube.session import ApiSession

from flyball_operator.cluster.watches import Watches
from flyball_operator.jobs.controller import JobController
from flyball_operator.jobs.starts.attempts import RestartRules
from flyball_operator.learning.learner import Learner
from flyball_operator.learning.recurrences import Recurrences
from flyball_operator.meters.endpoints import Endpoint
from flyball_operator.meters.meters import Meters
from flyball_operator.planning.plans import Plans
from flyball_operator.planning.worker import PlanWorker
from flyball_operator.power.controller import PowerController, PowerSettings
from flyball_operator.power.observing import ObservingController
from flyball_operator.report.energy_reports import EnergyReports
from flyball_operator.report.events import EventRecorder
from flyball_operator.report.metrics import OperatorMetrics
from flyball_operator.report.reporter import Reporter
from flyball_operator.settings import OBSERVE, Settings
from flyball_operator.term.leader_term import Deciders, LeaderTerm, Writers
from flyball_operator.term.pace import CyclePace
from flyball_operator.writes.background import Background
from flyball_operator.writes.executor import Executor


@dataclass(frozen=True)
class Lasting:
    """What outlasts every term: the connection, the local copies, the planner's process and what has been learned."""

    session: ApiSession
    settings: Settings
    watches: Watches
    worker: PlanWorker
    learner: Learner
    pace: CyclePace
    metrics: OperatorMetrics
    events: EventRecorder | None
    meter_endpoints: Mapping[str, Endpoint]  # by name
    monotonic: Callable[[], float]
    wall_clock: Callable[[], datetime]


def new_term(epoch: int, lasting: Lasting, check: Callable[[], None]) -> LeaderTerm:
    """A new leader term under `epoch`; `check` raises once the epoch is over, and is asked before every write."""
    settings, metrics = lasting.settings, lasting.metrics
    observe = settings.mode == OBSERVE
    executor = Executor(
        lasting.session.guarded(check),  # a request can wait for its turn for longer than the epoch lasts
        check,
        lasting.watches.absorb,
        metrics.count_action,
        settings.training_socket_directory,
        training_socket_resource=settings.training_socket_resource,
        gpu_resources=settings.gpu_resources,
        observe_write=metrics.observe_write,
        wall_clock=lasting.wall_clock,
    )
    deciders = Deciders(
        power=(ObservingController if observe else PowerController)(epoch, _power_settings(settings)),
        jobs=JobController(
            settings.status_interval_seconds,
            lasting.learner,
            settings.gpu_resources,
            RestartRules(settings.first_pause_seconds, settings.startup_timeout_seconds),
            start_seconds=settings.restart_seconds,
            observe=observe,
        ),
        plans=Plans(lasting.worker, settings.policy, settings.replan_seconds, epoch, lasting.pace.wake, metrics),
        learner=lasting.learner,
        recurrences=Recurrences(lasting.learner),
    )
    writers = Writers(
        executor,
        Reporter(executor, lasting.events),
        EnergyReports(lasting.session, settings.energy_rates, settings.report_seconds, settings.report_days),
        Background(lasting.pace.wake, patient=("status", "quota")),
    )
    meters = Meters(
        lasting.meter_endpoints,
        settings.meter_directory,
        lasting.pace.wake_at_once,
        lasting.wall_clock,
        lasting.monotonic,
    )
    return LeaderTerm(epoch, settings, lasting.watches, meters, deciders, writers, metrics, lasting.wall_clock)


def _power_settings(settings: Settings) -> PowerSettings:
    return PowerSettings(
        grant_lease_seconds=settings.grant_lease_seconds,
        guard_fraction=settings.guard_fraction,
        stale_after_seconds=settings.stale_after_seconds,
        acknowledge_timeout_seconds=settings.acknowledge_timeout_seconds,
        report_timeout_seconds=settings.report_timeout_seconds,
        status_interval_seconds=settings.status_interval_seconds,
        gpu_models=settings.gpu_models,
        brakes=settings.brakes,
    )
