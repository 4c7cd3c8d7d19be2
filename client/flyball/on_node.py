"""What a training process has of its node's agent: what its GPUs are held to, can do and have used, and who is told of it.

What fails there (no agent, a bad answer) costs one warning and never the training.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Callable

from flyball.budget import Budget
from flyball.environment import Environment
from flyball.node.agent import Agent, AgentError
from flyball.node.capabilities import GpuCapabilities, capabilities_of
from flyball.node.measuring import EnergyMeter, Measurement
from flyball.node.reporting import Reporter
from flyball.pipelines.own import own_partition_meter, own_pipeline
from flyball.pipelines.partition import Run, measure_all
from flyball.pipelines.pipeline import Pipeline
from flyball.shared_values import SharedValues
from flyball.stopping import Stopping

logger = logging.getLogger("flyball")

TICK_SECONDS = 0.1


class OnNode:
    """One process of a job on its node. `values` is what the job's processes share; None where it is alone."""

    def __init__(self, environment: Environment, values: SharedValues | None, monotonic: Callable[[], float]) -> None:
        self._environment = environment
        self._monotonic = monotonic
        self._values = values
        self._ended = threading.Event()
        self._started = False
        self.stopping = Stopping(environment.rank, environment.world_size, values, monotonic)
        has_agent = environment.socket is not None and environment.local_rank == 0
        self._reporter = Reporter(Agent(environment.socket or ""), monotonic) if has_agent else None
        self._searches = 0
        self._looks: list[Callable[[], None]] = [] if self._reporter is None else [self._reporter.report_if_due]
        self._meter = EnergyMeter(Agent(environment.socket) if environment.socket else None, monotonic)
        self._thread: threading.Thread | None = None

    @property
    def clock_megahertz(self) -> int | None:
        """The SM clock that this pod's GPUs are held to, by the agent's last answer; None before there is one."""
        return self._reporter.clock_megahertz if self._reporter is not None else None

    @property
    def power_limit_milliwatts(self) -> int | None:
        """The least power limit of this pod's GPUs, by the agent's last answer; None before there is one."""
        return self._reporter.power_limit_milliwatts if self._reporter is not None else None

    def progress(self) -> dict[str, str]:
        """For a progress bar, as `bar.set_postfix(job.progress())`: the pod's kJ since its start, its GPUs' MHz and W.

        These are of the agent's last answer, a few seconds old, so that a call takes no time; what is not known is left
        out. Of a pod's processes the one that reports knows them, `local_rank` 0.
        """
        reporter = self._reporter
        if reporter is None:
            return {}
        reporter.shows_energy = True
        energy, clock, limit = reporter.energy_millijoules, reporter.clock_megahertz, reporter.power_limit_milliwatts
        fields = {
            "kJ": None if energy is None else f"{energy / 1e6:.1f}",
            "MHz": None if clock is None else str(clock),
            "W": None if limit is None else f"{limit / 1e3:.0f}",
        }
        return {name: value for name, value in fields.items() if value is not None}

    @property
    def budget(self) -> Budget:
        """What the whole job may use and has used, and when it is due: to save less often, evaluate less, or stop early.

        What this pod uses is of the agent's last answer, some seconds old, so that a call takes no time; it is known to the
        process that reports, `local_rank` 0. The first call has it asked for from then on.
        """
        reporter = self._reporter
        if reporter is not None:
            reporter.shows_energy = True
        return Budget.of(self._environment.budget, None if reporter is None else reporter.energy_millijoules)

    def capabilities(self) -> Mapping[str, GpuCapabilities]:
        """What each of this pod's GPUs can do, by its UUID: its clocks, the grant, and how soon a clock is set.

        It asks the agent, a millisecond or so; none are named where there is no agent, or one that does not say.
        """
        if self._environment.socket is None:
            return {}
        try:
            return capabilities_of(Agent(self._environment.socket))
        except AgentError as error:
            logger.info("what this pod's GPUs can do is not known: %s", error)
            return {}

    def measure(self, name: str) -> Measurement:
        """Around a stretch of the training, to know what it took: seconds, and joules of all of this pod's GPUs.

        Each end asks the agent, who reads the GPUs for it, some ten milliseconds: it is for epochs, evaluations, a hundred
        steps, and not for each one. What was only queued on the GPU by then counts as done later: `flyball.torch` and
        `flyball.jax` wait for it.
        """
        return Measurement(name, self._meter, self._monotonic, self._wait_for_device)

    def _wait_for_device(self) -> None:
        """Return once the device has computed all that it was given; for adapters of frameworks that only queue it."""

    def limit_clock(self, max_megahertz: int | None) -> None:
        """Let this pod's GPUs run no faster than this, as long as the training lives; None: as fast as is granted.

        The agent takes it within its next round, a second or so, and only downwards; without an agent nothing happens.
        """
        if self._reporter is not None:
            self._reporter.wish_clock(max_megahertz)

    def pipeline(
        self,
        plan: str | None = None,
        *,
        stage: int,
        replica: int = 0,
        gpu: str = "",
        measure: Sequence[int] | None = None,
        profile: str = "",
    ) -> Pipeline:
        """This process' place in a pipeline, whose computations run at the clocks of a plan.

        `plan` is a file that `flyball frontier --output` has written; unless it is given, the job's `spec.pipeline` counts,
        and its objective, deadline and grant choose the point of the frontier, also while it trains; without either nothing
        is asked for. `stage`
        counts from 0, and so does `replica` where several pipelines train the same model. `gpu` is the UUID of this
        process' GPU; unless it is given, the device plugin's word counts. A plan that cannot be used costs one warning:
        the GPU then runs at what is granted.

        With `measure`, clocks in megahertz, it runs by no plan: the first replica's stages run at one clock after the
        other, from the highest downwards, until a lower one saves nothing, and leave in the folder `profile` what each of
        their computations took (`stage-00000.csv` and so on). Together, under the header
        `stage,instruction,frequency,time,energy`, they are what `flyball frontier --profile` takes. Raises ValueError
        where there is no clock or no folder, or a plan beside them; what is missing of the pod costs one warning.
        """
        return own_pipeline(
            self._environment,
            plan,
            stage=stage,
            replica=replica,
            gpu=gpu,
            values=self._values,
            monotonic=self._monotonic,
            measure=measure,
            profile=profile,
            look_beside=self._look_beside,
        )

    def measure_partition(self, folder: str, run: Run, *, gpu: str = "") -> int:
        """Measure a partition of a computation's kernels as a search asks for it; how many schedules that were.

        `run(kernels)` runs the partition once with its communication as `flyball.Kernels` says, and returns when that is
        computed. All processes that communicate in it call this with the same folder, in which `flyball kareus search`
        asks and reads the answers, and the pod's GPUs take part in nothing else; it returns when the search is over. `gpu`
        is as for `pipeline`. Raises RuntimeError where seconds, joules or the clock cannot be known.
        """
        self._searches += 1
        meter = own_partition_meter(
            self._environment,
            run,
            gpu=gpu,
            search=self._searches,
            values=self._values,
            measure=lambda: self.measure("partition"),
            monotonic=self._monotonic,
        )
        return measure_all(meter, folder, leads=self._environment.rank == 0)

    def start(self) -> None:
        """Hear SIGTERM, and begin to report, where there is anybody to report to or to stop with."""
        if not self.stopping.on_sigterm():
            logger.warning("joined outside the main thread: SIGTERM ends the training without a checkpoint")
        self._started = True
        self._go_on_beside()

    def _look_beside(self, look: Callable[[], None]) -> None:
        """Have this looked at now and then, in the thread beside the training."""
        self._looks.append(look)
        self._go_on_beside()

    def _go_on_beside(self) -> None:
        wanted = self._values is not None or self._looks
        if self._started and wanted and self._thread is None:
            self._thread = threading.Thread(target=self._beside, name="flyball", daemon=True)
            self._thread.start()

    def _beside(self) -> None:
        warned = False
        while not self._ended.wait(TICK_SECONDS):
            # Each by itself: a volume that fails one of them is no reason to tell the agent nothing.
            for look in (self.stopping.look, *self._looks):
                try:
                    look()
                except Exception as error:
                    if not warned:
                        logger.warning("training goes on without Flyball's help: %s", error)
                    warned = True
