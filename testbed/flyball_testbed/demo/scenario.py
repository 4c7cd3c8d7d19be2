"""The run itself: a cap is set, jobs come as in the trace, the cap falls and rises, everything is watched to its end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flyball_api.names import ANNOTATION_CONFIRM_WATTS
from flyball_api.power_cap import PowerCapSpec
from flyball_api.writing import api_object, spec_patch
from flyball_kube.resources import ENERGY_AWARE_JOBS, NAMESPACES, POWER_CAPS
from flyball_kube.session import ApiSession, JsonObject
from rich.console import Console
from rich.live import Live

from flyball_testbed.demo.jobs import DemoJob, energy_aware_job
from flyball_testbed.demo.picture import GpuTrace
from flyball_testbed.demo.screen import Moment, View, colours, render, simulated_time
from flyball_testbed.demo.watch import ClusterWatch, Shares, count_moves
from flyball_testbed.referee.hardware import HardwareReader, boottime_ns
from flyball_testbed.site import Site

NAMESPACE = "demo"
CAP_NAME = "cluster"
SAMPLE_SECONDS = 0.5
LINE_SECONDS = 5.0
READY_SECONDS = 90.0
SECONDS_BETWEEN_RESIZES = 30
AWAY_SECONDS, LAST_SECONDS = 6.0, 3.0  # for people to see what happens


@dataclass(frozen=True, slots=True)
class CapChange:
    """At `at_seconds` after the first submission the cap becomes `watts`."""

    at_seconds: float
    watts: int
    headline: str


@dataclass(frozen=True, slots=True)
class Fall:
    """How far limits had come down, and on how many nodes, once a cap was reported as enforced."""

    watts: float
    nodes: int


@dataclass(slots=True)
class Boot:
    """A node that boots while its agent stays away, under a cap that this breaks: seconds from the boot until the cap was
    not called enforced any more, and until it was again. `limits_watts` is what the limits came to meanwhile."""

    node: str
    cap_watts: int
    at: float
    limits_watts: float = 0.0
    withdrawn_seconds: float | None = None
    enforced_again_seconds: float | None = None


@dataclass(slots=True)
class Record:
    """What a run leaves, in seconds of the referee's clock. `ended` is when the last job had, `shown_until` the end."""

    began: float = 0.0
    ended: float = 0.0
    shown_until: float = 0.0
    falls: dict[int, Fall] = field(default_factory=dict)  # by which change of the cap
    # What the referee saw above an enforced cap, by limits and by draw, until a node boots: nobody can know of that before
    # its first sign, and how long the claim then stands is told on its own.
    limits_over_watts: float = 0.0
    true_over_watts: float = 0.0
    boot: Boot | None = None
    completion_seconds: dict[str, float] = field(default_factory=dict)
    failed: int = 0
    caps: list[tuple[int, float]] = field(default_factory=list)
    resizes: int = 0
    migrations: int = 0
    gpus: list[tuple[float, dict[str, int]]] = field(default_factory=list)

    def gpu_trace(self) -> GpuTrace:
        """Seconds from the first submission."""
        return GpuTrace([at - self.began for at, _ in self.gpus], [held for _, held in self.gpus])


class ScenarioError(Exception):
    """The site did not come to the point where jobs can be submitted."""


class Scenario:
    """One run on a site; `run` returns its record. `say` takes a line of progress (headless runs)."""

    def __init__(
        self,
        site: Site,
        jobs: Sequence[DemoJob],
        first_cap_watts: int,
        changes: Sequence[CapChange],
        compression: float,
        give_up_seconds: float,
        console: Console | None,
        say: Callable[[str], None],
    ) -> None:
        self._site = site
        self._jobs = jobs
        self._first_cap_watts = first_cap_watts
        self._changes = changes
        self._compression = compression
        self._give_up_seconds = give_up_seconds
        self._console = console
        self._say = say
        self._colours = colours([job.name for job in jobs])
        self._history: list[Moment] = []
        self._submitted: dict[str, float] = {}
        self._headline = ""
        self._origin_ns = 0
        self._record = Record()
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> Record:
        """Raises ScenarioError where no grant comes about, PartError where a part of the site ends by itself."""
        async with await ApiSession.connect(self._site.cluster.kubeconfig) as session:
            watch = ClusterWatch(session, NAMESPACE)
            self._tasks = [asyncio.create_task(informer.run()) for informer in watch.informers]
            try:
                await self._prepare(session, watch)
                start = time.monotonic()
                self._record.began = self._referee_seconds()
                self._tasks += [
                    asyncio.create_task(self._submit(session, start)),
                    asyncio.create_task(self._step_cap(session, watch, start)),
                ]
                await self._watch_until_done(session, watch, start)
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
        return self._record

    def _referee_seconds(self) -> float:
        return (boottime_ns() - self._origin_ns) / 1e9

    async def _prepare(self, session: ApiSession, watch: ClusterWatch) -> None:
        """A namespace, a cap, and every node under it."""
        self._origin_ns = self._site.referee_summary()["origin_ns"]
        await session.create(NAMESPACES.path(), {"metadata": {"name": NAMESPACE}})
        # The agents' nodes first: a cap over nodes whose limits are not known cannot be enforced.
        await watch.wait_synced()
        self._say(f"setting the cap to {self._first_cap_watts / 1000:.1f} kW and waiting until it is enforced")
        await session.create(POWER_CAPS.path(), _power_cap(self._first_cap_watts))
        self._record.caps.append((self._first_cap_watts, self._referee_seconds()))
        deadline = time.monotonic() + READY_SECONDS
        while watch.acknowledged_nodes() < self._site.plan.nodes or not self._judged():
            self._check()
            if time.monotonic() > deadline:
                raise ScenarioError(
                    f"after {READY_SECONDS:g} s {watch.acknowledged_nodes()} of {self._site.plan.nodes} nodes have "
                    f"acknowledged a grant, and the cap is {watch.cap}"
                )
            await asyncio.sleep(0.05)

    def _judged(self) -> bool:
        """Whether the referee, too, has seen the cap reported as enforced, and held a sample to it."""
        return bool(self._site.referee_summary()["caps"].get(CAP_NAME, {}).get("judged_seconds", 0.0) > 0)

    async def _submit(self, session: ApiSession, start: float) -> None:
        for job in self._jobs:
            await _until(start + job.submit_seconds)
            manifest = energy_aware_job(job, NAMESPACE, SECONDS_BETWEEN_RESIZES)
            await session.create(ENERGY_AWARE_JOBS.path(NAMESPACE), manifest)
            self._submitted[job.name] = time.monotonic()

    async def _step_cap(self, session: ApiSession, watch: ClusterWatch, start: float) -> None:
        for change in self._changes:
            await _until(start + change.at_seconds)
            await self._set_cap(session, watch, change.watts, change.headline)

    async def _set_cap(self, session: ApiSession, watch: ClusterWatch, watts: int, headline: str) -> None:
        """Change the cap, and see how far limits have fallen once it is reported as enforced."""
        before = self._limits_watts()
        self._record.caps.append((watts, self._referee_seconds()))
        number = len(self._record.caps) - 1
        meant = {"annotations": {ANNOTATION_CONFIRM_WATTS: str(watts)}}
        change = {"metadata": meant, **spec_patch(PowerCapSpec, watts=watts)}
        await session.patch(POWER_CAPS.path(name=CAP_NAME), change)
        self._headline = headline
        self._say(f"{headline} ({watts / 1000:.1f} kW)")
        await _holds(lambda: watch.cap is not None and watch.cap.enforced and watch.cap.effective_watts == watts)
        after = self._limits_watts()
        fell = {node: before[node] - after[node] for node in before}
        fall = Fall(sum(before.values()) - sum(after.values()), sum(watts >= 1.0 for watts in fell.values()))
        self._record.falls[number] = fall
        if fall.watts >= 1.0:
            self._headline = (
                f"{headline}: limits fell by {fall.watts / 1000:.1f} kW, on {fall.nodes} of {len(fell)} nodes"
            )
            self._say(self._headline)

    def _limits_watts(self) -> dict[str, float]:
        """The sum of each node's limits, as the hardware has them."""
        sample = HardwareReader(self._site.hardware).read()
        if sample is None:
            raise ScenarioError(f"{self._site.hardware} has no hardware")
        return {node: limits / 1000 for node, limits in zip(sample.nodes, sample.limits.tolist(), strict=True)}

    async def _boot(self, session: ApiSession, watch: ClusterWatch) -> None:
        """A node boots, and its agent does not come back for a while: its GPUs stand at their defaults.

        The cap has room for half of that: it cannot be held, and must not be called enforced.
        """
        site, plan = self._site, self._site.plan
        least = plan.gpus * plan.constants.min_limit_milliwatts // 1000
        rise = plan.gpus_per_node * (plan.constants.max_limit_milliwatts - plan.constants.min_limit_milliwatts) // 1000
        watts, node = least + rise // 2, sorted(watch.node_names())[-1]
        await self._set_cap(session, watch, watts, "every job is done: the cap falls to just above the smallest limits")
        await asyncio.to_thread(site.keep_agent_away, node)
        self._judge_so_far(self._site.referee_summary())
        boot = self._record.boot = Boot(node, watts, self._referee_seconds())
        await asyncio.to_thread(site.reboot, node)
        self._headline = f"{node} has booted, and its agent stays away"
        self._say(self._headline)
        await _holds(lambda: watch.cap is not None and not watch.cap.enforced)
        boot.withdrawn_seconds = self._referee_seconds() - boot.at
        boot.limits_watts = sum(self._limits_watts().values())
        reason = "" if watch.cap is None else f": {watch.cap.message}"
        self._headline = f"the cap is not called enforced any more after {boot.withdrawn_seconds:.1f} s{reason}"
        self._say(self._headline)
        await asyncio.sleep(AWAY_SECONDS)
        site.let_agent_back(node)
        await _holds(lambda: watch.cap is not None and watch.cap.enforced)
        boot.enforced_again_seconds = self._referee_seconds() - boot.at
        self._headline = f"the agent of {node} is back: enforced again after {boot.enforced_again_seconds:.1f} s"
        self._say(self._headline)
        await asyncio.sleep(LAST_SECONDS)

    async def _watch_until_done(self, session: ApiSession, watch: ClusterWatch, start: float) -> None:
        next_line = start
        boot: asyncio.Task[None] | None = None
        view: View | None = None
        with self._live() as live:
            while True:
                now = time.monotonic()
                self._check()
                if len(watch.finished) == len(self._jobs) and boot is None:
                    self._record.ended = self._referee_seconds()
                    boot = asyncio.create_task(self._boot(session, watch))
                    self._tasks.append(boot)
                done = boot is not None and boot.done()
                self._observe(watch, now, start)
                view = self._view(watch, now - start)
                if live is not None and self._console is not None:
                    live.update(render(view, self._console.width, self._console.height), refresh=True)
                elif now >= next_line or done:
                    next_line = now + LINE_SECONDS
                    self._say(_line(view))
                if done or now - start > self._give_up_seconds:
                    break
                await asyncio.sleep(max(0.0, now + SAMPLE_SECONDS - time.monotonic()))
        self._record.shown_until = self._referee_seconds()
        self._record.ended = self._record.ended or self._record.shown_until
        for name, (at, outcome) in watch.finished.items():
            if outcome == "Succeeded":
                self._record.completion_seconds[name] = at - self._submitted[name]
            else:
                self._record.failed += 1

    def _check(self) -> None:
        """Whatever went wrong in a part of the site or in one of our tasks is raised here."""
        self._site.check()
        for task in self._tasks:
            if task.done():
                task.result()

    def _live(self) -> contextlib.AbstractContextManager[Live | None]:
        if self._console is None:
            return contextlib.nullcontext()
        return Live(console=self._console, auto_refresh=False, screen=True)

    def _observe(self, watch: ClusterWatch, now: float, start: float) -> None:
        summary = self._site.referee_summary()
        if self._record.boot is None:
            self._judge_so_far(summary)
        cap = summary["caps"].get(CAP_NAME, {})
        self._history.append(Moment(now - start, summary["true_watts"], summary["limits_watts"], cap.get("watts")))
        held = {job: sum(gpus for _, gpus in shares) for job, shares in watch.held().items()}
        self._record.gpus.append((self._referee_seconds(), held))
        self._record.resizes, self._record.migrations = count_moves(watch.incarnations.values())

    def _judge_so_far(self, summary: JsonObject) -> None:
        cap = summary["caps"].get(CAP_NAME, {})
        self._record.limits_over_watts = cap.get("max_limits_over_watts", 0.0)
        self._record.true_over_watts = cap.get("max_true_over_watts", 0.0)

    def _view(self, watch: ClusterWatch, seconds: float) -> View:
        held: dict[str, Shares] = watch.held()
        return View(
            seconds=seconds,
            compression=self._compression,
            headline=self._headline,
            max_watts=self._site.plan.max_watts,
            gpus_per_node=self._site.plan.gpus_per_node,
            nodes=sorted(watch.node_names()),
            cap=watch.cap,
            history=self._history,
            over_watts=max(self._record.limits_over_watts, self._record.true_over_watts),
            jobs=sorted(watch.jobs, key=lambda job: job.name),
            held=held,
            colours=self._colours,
            to_come=len(self._jobs) - len(self._submitted),
            resizes=self._record.resizes,
            migrations=self._record.migrations,
        )


def _power_cap(watts: int) -> JsonObject:
    return api_object(POWER_CAPS.kind, CAP_NAME, PowerCapSpec(watts=watts))


async def _holds(condition: Callable[[], bool]) -> None:
    """Wait until it does; who waits too long is cancelled with the run."""
    while not condition():  # noqa: ASYNC110 - conditions of several informers, looked at for a screen
        await asyncio.sleep(0.02)


async def _until(monotonic: float) -> None:
    await asyncio.sleep(max(0.0, monotonic - time.monotonic()))


def _line(view: View) -> str:
    """One line of a headless run."""
    now = view.history[-1]
    minutes, seconds = divmod(int(view.seconds), 60)
    used = sum(gpus for shares in view.held.values() for _, gpus in shares)
    running = sum(not job.outcome and job.gpus > 0 for job in view.jobs)
    done = sum(bool(job.outcome) for job in view.jobs)
    enforced = "enforced" if view.cap is not None and view.cap.enforced else "not enforced"
    cap = "no cap" if now.cap is None else f"cap {now.cap / 1000:.1f} kW {enforced}"
    return (
        f"{minutes}:{seconds:02d} = {simulated_time(view.seconds * view.compression)} simulated: draw "
        f"{now.draw / 1000:.1f} kW, limits {now.limits / 1000:.1f} kW, {cap}; {used} GPUs in use; {running} running, "
        f"{len(view.jobs) - running - done} waiting, {view.to_come} to come, {done} done; {view.resizes} resizes, "
        f"{view.migrations} migrations"
    )
