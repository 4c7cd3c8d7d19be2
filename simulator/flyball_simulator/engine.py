"""The event loop: arrivals, completions, caps and nodes, and a policy that decides in between.

Time jumps from event to event. Between two of them every job goes at a constant pace and draws constant watts, so nothing
is stepped through. The policy decides at most once in `planning_interval_seconds`; a change of the cap is decided on at
once, so that no instant is over it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from flyball_planner.models.gpu import GpuModel, gpu_model_for
from flyball_planner.policies.energy_budget import EnergyBudget
from flyball_planner.policies.view import Choice, ClusterView, JobView, Knob, Policy
from flyball_planner.shifting import Signal, best_start

from flyball_simulator.cluster.agenda import Agenda, Entry, Event
from flyball_simulator.cluster.execution import Execution
from flyball_simulator.cluster.meter import ConservationError, Meter
from flyball_simulator.cluster.node_switching import NodeSwitching
from flyball_simulator.cluster.nodes import Nodes
from flyball_simulator.cluster.policy_rules import PolicyRules
from flyball_simulator.cluster.runs import Phase, Run, restart_seconds
from flyball_simulator.knowledge import Predictor, decision_clocks, nearest_clock
from flyball_simulator.measured.oracle import Oracle
from flyball_simulator.outside_policies import policy_of
from flyball_simulator.settings import NodeEvent, Sample, SimulationResult, SimulationSettings
from flyball_simulator.workloads.workload import SimulatedJob

STALL_SECONDS = 365 * 86_400.0  # no event for so long: the policy leaves every job waiting
NO_PROGRESS_LIMIT_SECONDS = 86_400.0  # jobs wait, none runs and no event is due: the policy will never start them
BUDGET_SECONDS = 300.0  # between looks at what was drawn, where an energy budget moves the price

Progress = Callable[[float, int, int], None]


def simulate(
    jobs: Sequence[SimulatedJob], settings: SimulationSettings, *, trace: str = "", progress: Progress | None = None
) -> SimulationResult:
    """Run the jobs under the settings' policy until the last has ended.

    `progress` is called with simulated seconds, ended jobs and all jobs, at every decision. Raises ValueError for an
    unknown policy or GPU or a job that can never run, and ConservationError where something does not add up.
    """
    return Simulation(jobs, settings, progress).run(trace)


class Simulation:
    """One run: jobs, nodes, meter, and what is to happen."""

    def __init__(
        self, jobs: Sequence[SimulatedJob], settings: SimulationSettings, progress: Progress | None = None
    ) -> None:
        gpu = gpu_model_for(settings.gpu_product)
        if gpu is None:
            raise ValueError(f"GPU {settings.gpu_product!r} is not in the catalogue")
        if not jobs:
            raise ValueError("there is no job to simulate")
        self.settings = settings
        self.gpu: GpuModel = gpu
        self.policy: Policy = policy_of(settings.policy)
        self.clocks = decision_clocks(gpu)
        self.clock_index = nearest_clock(self.clocks, settings.clock_megahertz)
        self.agenda = Agenda()
        self.nodes = Nodes(settings.gpus // settings.gpus_per_node, settings.gpus_per_node)
        self.meter = Meter(settings.gpus, settings.gpus_per_node, gpu.idle_power_watts, settings.node_overhead_watts)
        self.rules = PolicyRules(self.policy, self.nodes, len(self.clocks), gpu.idle_power_watts)
        self.switching = NodeSwitching(settings, gpu, self.nodes, self.meter, self.agenda)
        self.predictor = Predictor(
            settings.knowledge,
            gpu,
            self.clocks,
            settings.gpus_per_node,
            seed=settings.seed,
            noise=settings.noise,
            model_error=settings.model_error,
            prior_error=settings.prior_error,
            clock=None if self.policy.traits.measures and settings.measure_clocks else self.clock_index,
            needs_model=self.policy.traits.needs_model,
        )
        self.execution = Execution(settings, self.policy, gpu, self.predictor, self.meter, self.agenda)
        oracle = Oracle(gpu, self.clocks, settings.gpus_per_node)
        self.runs = [self._new_run(index, job, oracle) for index, job in enumerate(jobs)]
        if len({run.view.uid for run in self.runs}) != len(self.runs):
            raise ValueError("two jobs have the same id")
        self.active: dict[str, Run] = {}
        self.samples: list[Sample] = []
        self.now = 0.0
        self.done = self.plans = self.migrations = 0
        self._progress = progress
        self.node_failures = self.evictions = 0
        self.lost_gpu_seconds = 0.0
        self._dirty = False
        self._next_plan = -math.inf  # not before
        self._plan_due = math.inf
        self._none_running_since = math.inf  # while jobs wait and none runs
        self._signal_ahead = Signal.of(settings.carbon_grams_per_kwh) if settings.shifts else None
        self._price = settings.price or 0.0
        self._price_scale = 1.0
        self._budget = None if settings.energy_budget_watts is None else EnergyBudget(settings.energy_budget_watts)
        self._accounted = (0.0, 0.0)  # seconds and joules up to which the budget has been reckoned
        if self._budget is not None and self.policy.traits.knob is not Knob.PRICE:
            raise ValueError(f"policy {settings.policy} has no price that an energy budget could move; price has one")

    def run(self, trace: str = "") -> SimulationResult:
        """Process every event in the order of time."""
        started = time.perf_counter()
        self._schedule_known_events()
        while self.agenda:
            entry = self.agenda.pop()
            if self._outdated(entry):
                continue
            if entry.seconds > self.now + STALL_SECONDS:
                raise ConservationError(f"nothing is to happen for {entry.seconds - self.now:.6g} s")
            self.now = max(self.now, entry.seconds)
            self.meter.advance(self.now)
            self._handle(entry)
            if self._dirty and not (self.agenda and self.agenda.next_seconds <= self.now):
                self._plan_when_due()
        for run in self.runs:
            if run.phase is not Phase.DONE:
                raise self._never_started(run)
        self.meter.check(self.runs)
        return self._result(trace, time.perf_counter() - started)

    def _never_started(self, run: Run) -> ConservationError:
        job = run.job
        return ConservationError(
            f"policy {self.policy.name} leaves job {job.job_id} ({job.gpus} GPUs) waiting for ever"
        )

    def _check_progress(self, running: int) -> None:
        """End a run in which jobs wait for ever: a policy that decides at intervals would keep the simulation going."""
        if running or not self.active:
            self._none_running_since = math.inf
            return
        self._none_running_since = min(self._none_running_since, self.now)
        if self.now - self._none_running_since > NO_PROGRESS_LIMIT_SECONDS and not any(
            entry.event is not Event.PLAN and not self._outdated(entry) for entry in self.agenda
        ):
            raise self._never_started(next(iter(self.active.values())))

    def _schedule_known_events(self) -> None:
        settings = self.settings
        for run in self.runs:
            self.agenda.schedule(run.job.submit_seconds, Event.ARRIVAL, run.index)
        self._set_cap(settings.power_limit_fraction)
        for index, step in enumerate(settings.cap_steps):
            self.agenda.schedule(step.at_seconds, Event.CAP, index)
        for index, event in enumerate(settings.node_events):
            self.agenda.schedule(event.at_seconds, Event.NODE, index)
        for index, (at, _) in enumerate((*settings.price_signal, *settings.carbon_grams_per_kwh)):
            self.agenda.schedule(at, Event.SIGNAL, index)

    def _outdated(self, entry: Entry) -> bool:
        if entry.event in (Event.COMPLETION, Event.PHASE_END, Event.LEARN):
            return self.runs[entry.subject].version != entry.version
        if entry.event is Event.NODE_OFF:
            return self.done == len(self.runs) or self.switching.outdated(entry.subject, entry.version)
        if entry.event in (Event.CAP, Event.SIGNAL, Event.NODE):
            return self.done == len(self.runs)  # no job is left that the rest of the schedule could concern
        return entry.event is Event.PLAN and self.plans != entry.version

    def _handle(self, entry: Entry) -> None:
        match entry.event:
            case Event.ARRIVAL:
                run = self.runs[entry.subject]
                if self._puts_off(run):
                    return
                self.active[run.view.uid] = run
            case Event.COMPLETION:
                self._complete(self.runs[entry.subject])
            case Event.PHASE_END:
                if not self.execution.end_phase(self.runs[entry.subject], self.now):
                    return
            case Event.LEARN:
                self.execution.learn(self.runs[entry.subject], self.now)
            case Event.NODE_OFF:
                self.switching.switch_off(entry.subject)
                return
            case Event.CAP:
                self._set_cap(self.settings.cap_steps[entry.subject].fraction)
                self._next_plan = self.now
            case Event.SIGNAL:
                self._signal(entry.subject)
            case Event.NODE:
                self._node(self.settings.node_events[entry.subject])
                self._next_plan = self.now
            case Event.PLAN:
                self._plan_due = math.inf
        self._dirty = True

    def _puts_off(self, run: Run) -> bool:
        """Have a job that can wait arrive where the grid emits least while it runs, as the operator would; once."""
        until = run.job.flexible_until_seconds
        if self._signal_ahead is None or until is None or self.now > run.job.submit_seconds:
            return False
        table = run.view.performance
        seconds = run.job.iterations * table.seconds_rows[table.position[run.job.gpus]][-1]
        start = best_start(self._signal_ahead, self.now, until, seconds)
        if start is not None:
            self.agenda.schedule(start.second, Event.ARRIVAL, run.index)
        return start is not None

    def _complete(self, run: Run) -> None:
        run.advance(self.now)
        self.execution.end(run, self.now)
        self.nodes.release(run)
        self.switching.watch(self.now)
        del self.active[run.view.uid]
        self.done += 1

    def _node(self, event: NodeEvent) -> None:
        """A node fails with all that is on it, or is there again; one that is in that state already stays so."""
        node = event.node
        if event.up:
            if node in self.nodes.lost:
                self.nodes.lost.discard(node)
                self.switching.repair(node, self.now)
            return
        if node in self.nodes.lost:
            return
        self.node_failures += 1
        for run in self.active.values():
            if any(of == node for of, _ in run.cells):
                run.advance(self.now)
                self.lost_gpu_seconds += run.fall_back()
                self.evictions += 1
                self._stop(run)
        self.nodes.lost.add(node)
        self.switching.fail(node)
        self.switching.watch(self.now)

    def _signal(self, index: int) -> None:
        prices = self.settings.price_signal
        if index < len(prices):
            self._price_scale = prices[index][1]
        else:
            grams_per_kwh = self.settings.carbon_grams_per_kwh[index - len(prices)][1]
            self.meter.carbon_grams_per_joule = grams_per_kwh / 3.6e6

    def _set_cap(self, fraction: float | None) -> None:
        full = self.settings.gpus * self.gpu.default_power_limit_watts
        self.meter.cap_watts = None if fraction is None else fraction * full

    def _plan_when_due(self) -> None:
        self._dirty = False
        if self.now >= self._next_plan:
            self._plan()
        elif self._plan_due > self._next_plan:
            self._schedule_plan(self._next_plan)

    def _schedule_plan(self, seconds: float) -> None:
        self._plan_due = seconds
        self.agenda.schedule(seconds, Event.PLAN, 0, self.plans)

    def _plan(self) -> None:
        for run in self.active.values():
            run.advance(self.now)
            self.execution.update_view(run)
        self._keep_to_budget()
        if self.active:
            self._apply(self.policy.decide(self._view()) if self.nodes.usable_gpus else ())
        self.plans += 1
        self._plan_due = math.inf
        self._next_plan = self.now + self.settings.planning_interval_seconds
        running = sum(1 for run in self.active.values() if run.gpus)
        self.samples.append(self.meter.sample(running, len(self.active) - running))
        self._check_progress(running)
        if self.policy.traits.interval_seconds is not None and len(self.active) > running:
            self._schedule_plan(self.now + self.policy.traits.interval_seconds)
        elif self._budget is not None and self.active:
            self._schedule_plan(self.now + BUDGET_SECONDS)
        if self._progress is not None:
            self._progress(self.now, self.done, len(self.runs))

    def _keep_to_budget(self) -> None:
        """Move the price by what was drawn since the last decision."""
        if self._budget is not None:
            seconds, joules = self._accounted
            self._accounted = (self.now, self.meter.total_joules)
            drawn = self.meter.total_joules - joules
            self._price = self._budget.next_price(self._price, drawn, self.now - seconds)

    def _view(self) -> ClusterView:
        settings = self.settings
        return ClusterView(
            now_seconds=self.now,
            gpus=self.nodes.usable_gpus,
            gpus_per_node=settings.gpus_per_node,
            clocks_megahertz=self.clocks,
            jobs=[run.view for run in self.active.values()],
            max_gpu_watts=self.gpu.default_power_limit_watts,
            idle_gpu_watts=self.gpu.idle_power_watts,
            sunk_gpu_watts=0.0 if settings.power_off_empty_nodes else self.gpu.idle_power_watts,
            host_gpu_watts=settings.node_overhead_watts / settings.gpus_per_node
            if settings.power_off_empty_nodes
            else 0.0,
            power_limit_watts=self.meter.cap_watts,
            guard_fraction=settings.guard_fraction,
            clock_index=self.clock_index,
            price=self._price * self._price_scale,
        )

    def _apply(self, choices: Sequence[Choice]) -> None:
        """Make the choices true: who stops, who starts where, who changes its clock."""
        chosen = self.rules.checked(choices, self.active)
        for uid, run in self.active.items():
            if run.gpus and uid not in chosen:
                self._stop(run)
        before = {uid: run.cells for uid, (run, _) in chosen.items()}
        for run in self._place(chosen):
            del chosen[run.view.uid]
            if run.gpus:
                self._stop(run)
        self.switching.boot_taken(self.now)
        for uid, (run, choice) in chosen.items():
            if run.cells != before[uid] or run.gpus != choice.gpus:
                ready_at = self.switching.ready_at([node for node, _ in run.cells])
                self.execution.start(run, choice, ready_at, self.now)
            else:
                self.execution.change_clock(run, choice, self.now)
        self.switching.watch(self.now)
        self.rules.check_limits(self.active.values(), self.meter.cap_watts)

    def _stop(self, run: Run) -> None:
        self.execution.stop(run, self.now)
        self.nodes.release(run)

    def _place(self, chosen: dict[str, tuple[Run, Choice]]) -> list[Run]:
        """Cells for everybody who is chosen; who finds none."""
        resized = [(run, choice.gpus) for run, choice in chosen.values() if run.gpus != choice.gpus]
        if not resized:
            return []
        if self.policy.traits.repacks:
            for run, _ in resized:
                self.nodes.release(run)
            staying = [run for run, choice in chosen.values() if run.gpus == choice.gpus]
            self.migrations += len(self.nodes.settle(resized, staying, self.switching.preferred()))
            return []
        wanted = [(run, choice.gpus) for run, choice in chosen.values()]
        homeless, moved = self.nodes.settle_in_order(wanted, self.switching.preferred())
        self.migrations += len(moved)
        return homeless

    def _new_run(self, index: int, job: SimulatedJob, oracle: Oracle) -> Run:
        largest = min(self.settings.gpus, job.global_batch_size)
        truth = oracle.performance(job.model_class, job.global_batch_size, 1 << (largest.bit_length() - 1))
        if job.gpus not in truth.position:
            raise ValueError(f"job {job.job_id} asks for {job.gpus} GPUs; it can have one of {truth.sizes}")
        view = JobView(
            uid=job.job_id,
            submit_time_seconds=job.submit_seconds,
            requested_gpus=job.gpus,
            performance=self.predictor.predict(job.model_class, job.global_batch_size, truth, frozenset()),
            remaining_iterations=job.iterations,
            restart_seconds=self.settings.restart_scale * restart_seconds(job.gpus),
            since_seconds=job.submit_seconds,
            deadline_seconds=min(
                (due for due in (job.deadline_seconds, job.flexible_until_seconds) if due is not None), default=None
            ),
            remaining_energy_joules=job.energy_budget_joules,
            objective=self.settings.objective,
        )
        return Run(index, job, truth, view, self.settings.checkpoint_seconds)

    def _result(self, trace: str, wall_seconds: float) -> SimulationResult:
        meter = self.meter
        return SimulationResult(
            settings=self.settings,
            trace=trace,
            completion_seconds={run.job.job_id: run.completed_seconds or 0.0 for run in self.runs},
            makespan_seconds=self.now,
            joules={"gpu": meter.gpu_joules, "idle": meter.idle_joules, "node": meter.node_joules},
            max_watts=meter.max_watts,
            cap_watts=meter.cap_watts,
            cap_violation_seconds=meter.violation_seconds,
            restarts=self.execution.restarts,
            node_failures=self.node_failures,
            evictions=self.evictions,
            lost_gpu_seconds=self.lost_gpu_seconds,
            migrations=self.migrations,
            profiling_joules=self.execution.profiling_joules,
            carbon_grams=meter.carbon_grams if self.settings.carbon_grams_per_kwh else None,
            plans=self.plans,
            wall_seconds=wall_seconds,
            samples=tuple(self.samples),
        )
