"""One cluster for one schedule: two operators, three nodes with their agents, caps over them, and what can befall them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import tempfile
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson
from flyball_agent.enforce.journal import JournalError, JournalOfAnotherNode
from msgspec.structs import replace

from tests.support.agent_doubles import Pods
from tests.support.operator_objects import NOW
from tests.support.power_cluster import (
    GPUS,
    LABELS,
    NODES,
    OVERHEAD_WATTS,
    SELECTORS,
    cap_watts,
    foreign_weights,
    incarnation,
    planned,
    pod,
)
from tests.support.schedules.hardware import Machine
from tests.support.schedules.memory_api import Change, Json, MemoryApi
from tests.support.schedules.network import Link, Network
from tests.support.schedules.processes import (
    SETTINGS,
    AgentProcess,
    Disks,
    Intended,
    OperatorProcess,
    end,
    pods_on,
)
from tests.support.schedules.referee import Referee
from tests.support.schedules.virtual_time import OUTSIDE, PROCESS, VirtualLoop

T = TypeVar("T")

OPERATORS = ("0", "1")
RESTART_SECONDS = 1.0  # after which a process that ended by itself is started again


@dataclass(frozen=True)
class Beginning:
    """The caps, in tenths of the most that their nodes can draw, which of them add up predicted draw, and the plan."""

    tenths: tuple[int, ...]
    expected: tuple[bool, ...]
    wishes: tuple[tuple[int, float], ...]


class World:
    """Everything of one schedule; `trace` has what happened, if it is kept, and `fingerprint` a digest over that and over
    every object whole, each time that it was stored."""

    def __init__(self, loop: VirtualLoop, folder: Path, seed: int, *, keep_trace: bool) -> None:
        self.trace: list[str] = []
        self.fingerprint = hashlib.sha256()
        self.draw = random.Random(seed)
        self._loop = loop
        self._folder = folder
        self._keep_trace = keep_trace
        self._tasks: set[asyncio.Task[Any]] = set()
        self.referee = Referee(loop, self._in_office, SETTINGS.report_timeout_seconds, self.note)
        self.api = MemoryApi(self._changed)
        self.network = Network(self.api)
        self.disks = Disks(loop)
        self.intended = Intended({}, [], {})
        self.pods: set[tuple[str, int]] = set()
        self.asked_permille: dict[tuple[str, int], int] = {}  # by foreign pods, of their GPUs' share
        self.machines: dict[str, Machine] = {}
        self.agents: dict[str, AgentProcess] = {}
        self._pod_sources: dict[str, Pods] = {}
        self.operators: dict[str, OperatorProcess] = {}
        self.operator_kind: type[OperatorProcess] = OperatorProcess
        self._absent: dict[str, int] = {}  # how many faults keep a process away
        self._started = 0
        self._numbers: dict[str, int] = {}  # of the processes that there are, by name
        self._frozen: set[str] = set()
        self.wall_offsets = dict.fromkeys(OPERATORS, 0.0)
        self.clock_rates = dict.fromkeys(OPERATORS, 1.0)  # of their clocks since boot
        self.settings = dict.fromkeys(OPERATORS, SETTINGS)
        self.selectors: dict[str, Json] = dict(SELECTORS)
        self._fields: dict[str, Json] = {name: {} for name in SELECTORS}  # what else is said of each cap

    # --- the course of it --------------------------------------------------------------------------------------------

    async def begin(self, beginning: Beginning) -> None:
        for name in NODES:
            machine = Machine(name, LABELS[name], self._loop, self.referee)
            self.machines[name] = machine
            machine.held = {index: f"{name}-{index}" for index in range(GPUS)}
            self._pod_sources[name] = Pods()
            self.referee.add(name, machine.devices, machine.labels, machine.boottime_ns)
            self.api.put("nodes", machine.as_node())
        self.pods = {(name, index) for name in NODES for index in range(GPUS)}
        for name, tenths, expected in zip(SELECTORS, beginning.tenths, beginning.expected, strict=True):
            self.set_cap(name, tenths, expected)
        self.plan(beginning.wishes)
        for name in OPERATORS:
            self.start_operator(name)
        for name in NODES:
            self.start_agent(name)

    async def close(self) -> None:
        await end(self._tasks)
        for name in list(self.operators):
            self._thaw(name)
            await self.operators.pop(name).kill()
        for name in list(self.agents):
            self._thaw(name)
            await self.agents.pop(name).kill()

    def note(self, text: str) -> None:
        if self._keep_trace:
            line = self._without_folder(f"{self._loop.time():8.3f}  {text}")
            self.trace.append(line)
            self.fingerprint.update(line.encode())

    def _without_folder(self, text: str) -> str:
        """What is said of a disk, without where it is this time."""
        return text.replace(str(self._folder), "")

    def later(self, seconds: float, what: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do something after some seconds."""

        async def wait() -> None:
            await asyncio.sleep(seconds)
            await what()

        task = self._loop.create_task(wait(), context=OUTSIDE.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def until_over(self) -> None:
        """Until whatever the faults have brought about is over."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _changed(self, change: Change) -> None:
        if self._keep_trace:
            stored = [self._loop.time(), change.kind, change.plural, change.item]
            told = orjson.dumps(stored, option=orjson.OPT_SORT_KEYS).decode()
            self.fingerprint.update(self._without_folder(told).encode())
            if change.plural == "gpunodes":
                self._note_gpu_node(change)
        self.referee.told(change)

    def _note_gpu_node(self, change: Change) -> None:
        spec, status = change.item.get("spec") or {}, change.item.get("status") or {}
        acknowledged = status.get("acknowledged") or {}
        self.note(
            f"gpunode {change.item['metadata']['name']} {change.kind}: "
            f"grant ({spec.get('epoch')},{spec.get('generation')}) bound {spec.get('boundMilliwatts')} "
            f"committed {spec.get('committedMilliwatts')}, "
            f"acknowledged ({acknowledged.get('epoch')},{acknowledged.get('generation')}) "
            f"{acknowledged.get('limitsMilliwatts')} mW in {status.get('bootID')} {status.get('driverSession')}"
        )

    def _in_office(self) -> bool:
        """A leader is in office that runs, and nothing stands between it and the API server."""
        now, frozen = self._loop.time(), self._frozen
        return any(item.leads and name not in frozen and item.link.clear(now) for name, item in self.operators.items())

    # --- what people and the planner want ------------------------------------------------------------------------------

    def emergency(self, cap: str, state: str) -> None:
        """Declare an emergency ("Active") or end one ("Ended"), as `flyball emergency` does."""
        before = self.api.get("powerbrakes", cap)
        spec = {"epoch": 0, "sequence": 0} if before is None else before["spec"]
        if state == "Ended" and spec.get("emergency") != "Active":
            return
        spec = {"epoch": spec["epoch"], "sequence": spec["sequence"] + 1, "keptMillionths": 0, "emergency": state}
        self.api.put("powerbrakes", {"kind": "PowerBrake", "metadata": {"name": cap}, "spec": spec})

    def set_cap(self, name: str, tenths: int, expected: bool | None = None) -> None:
        before = self.api.get("powercaps", name)
        if expected is None:
            expected = before is not None and before["spec"]["enforcement"] == "Expected"
        spec = {
            "watts": cap_watts(name, tenths),
            "nodeSelector": self.selectors[name],
            "staticOverheadWatts": OVERHEAD_WATTS[name],
            "enforcement": "Expected" if expected else "Hard",
            "foreignWeights": [
                {"namespace": each.namespace, "permille": each.permille} for each in foreign_weights(tenths)
            ],
        }
        spec |= self._fields[name]
        if "permilleOfMax" in spec:
            del spec["watts"]
        kept = {} if before is None else {key: value for key, value in before.items() if key != "spec"}
        self.api.put("powercaps", {"kind": "PowerCap", "metadata": {"name": name}, **kept, "spec": spec})

    def set_selector(self, name: str, labels: dict[str, str]) -> None:
        """Have a cap select other nodes."""
        self.selectors[name] = {"matchLabels": labels} if labels else {}
        before = self.api.get("powercaps", name)
        if before is not None:
            spec = {**before["spec"], "nodeSelector": self.selectors[name]}
            self.api.put("powercaps", {**before, "spec": spec})

    def say_of_cap(self, name: str, fields: Json) -> None:
        """Have a cap's spec say this, too, from now on, beside what it says of watts and nodes."""
        before = self.api.get("powercaps", name)
        if before is None:
            return
        self._fields[name] = self._fields[name] | fields
        spec = before["spec"] | fields
        if "permilleOfMax" in spec:
            spec.pop("watts", None)
        self.api.put("powercaps", {**before, "spec": spec})

    def plan(self, wishes: tuple[tuple[int, float], ...]) -> None:
        places = [(name, index) for name in NODES for index in range(GPUS)]
        self.intended.decisions = {
            f"uid-{name}-{index}": planned(name, index, *wish)
            for (name, index), wish in zip(places, wishes, strict=True)
        }
        self.intended.incarnations = {f"uid-{name}-{index}": [incarnation(name, index)] for name, index in places}
        self.show_pods()
        for item in self.operators.values():
            item.operator.wake()

    def show_pods(self) -> None:
        """The pods as Kubernetes has them, and as the kubelets say."""
        self.intended.pods = [
            replace(pod(*place), power_permille=self.asked_permille[place])
            if place in self.asked_permille
            else pod(*place)
            for place in sorted(self.pods)
        ]
        for name, machine in self.machines.items():
            self._pod_sources[name].pods = pods_on(machine.node, machine.held)

    # --- processes ---------------------------------------------------------------------------------------------------

    def _as_process(self, name: str, start: Callable[[], T]) -> T:
        """Start a process: what it brings about is its own from now on."""
        self._numbers[name] = self._numbers.get(name, 0) + 1
        context = copy_context()
        context.run(PROCESS.set, self._process(name))
        return context.run(start)

    def _process(self, name: str) -> str:
        return f"{name} {self._numbers[name]}"

    async def freeze(self, name: str, seconds: float) -> None:
        """An operator or an agent that runs stands still for so long."""
        if name in self._frozen or not (name in self.operators or name in self.agents):
            return
        self.note(f"{name} stands still")
        self._frozen.add(name)
        process = self._process(name)
        self._loop.freeze(process)

        async def go_on() -> None:
            if name in self._frozen and self._process(name) == process:
                self.note(f"{name} goes on")
                self._thaw(name)

        self.later(seconds, go_on)

    def _thaw(self, name: str) -> None:
        if name in self._frozen:
            self._frozen.discard(name)
            self._loop.thaw(self._process(name))

    def start_operator(self, name: str) -> None:
        if name in self.operators or self._absent.get(name):
            return
        self._started += 1
        link = Link(self.network, random.Random(self.draw.random()))
        self.operators[name] = self._as_process(
            name,
            lambda: self.operator_kind(
                self._started,
                link,
                self.intended,
                lambda: self.wall_offsets[name],
                self.clock_rates[name],
                self.settings[name],
            ),
        )
        self.note(f"operator {name} starts")

    async def stop_operator(self, name: str, seconds: float, *, gracefully: bool = False) -> None:
        """End an operator, which is started again after `seconds`."""
        self._keep_away(name, seconds)
        process = self.operators.pop(name, None)
        if process is None:
            return
        self._thaw(name)
        self.note(f"operator {name} {'stops' if gracefully else 'dies'}{' (leads)' if process.leads else ''}")
        if gracefully:
            with contextlib.suppress(Exception):
                await process.terminate()
        else:
            await process.kill()

    def start_agent(self, name: str) -> None:
        if name in self.agents or self._absent.get(name):
            return
        machine = self.machines[name]
        link = Link(self.network, random.Random(self.draw.random()))

        def failed() -> None:
            self.note(f"agent {name} ends by itself")
            self.later(0.0, lambda: self.stop_agent(name, RESTART_SECONDS))

        try:
            self.agents[name] = self._as_process(
                name,
                lambda: AgentProcess(
                    machine.node,
                    machine.driver,
                    self._folder,
                    machine.disk,
                    self._pod_sources[name],
                    link,
                    machine.boottime_ns,
                    lambda: NOW.timestamp() + self._loop.time(),
                    failed,
                ),
            )
        except (JournalError, JournalOfAnotherNode) as error:
            link.close()
            self.note(f"agent {name} does not start: {error}")
            self._keep_away(name, RESTART_SECONDS)
            return
        self.note(f"agent {name} starts")

    async def stop_agent(self, name: str, seconds: float) -> None:
        """Kill an agent, which is started again after `seconds`."""
        self._keep_away(name, seconds)
        process = self.agents.pop(name, None)
        if process is not None:
            self._thaw(name)
            self.note(f"agent {name} dies")
            await process.kill()

    def _keep_away(self, name: str, seconds: float) -> None:
        self._absent[name] = self._absent.get(name, 0) + 1

        async def back() -> None:
            self._absent[name] -= 1
            (self.start_operator if name in OPERATORS else self.start_agent)(name)

        self.later(seconds, back)

    def link_of(self, name: str) -> Link | None:
        process = self.operators.get(name) or self.agents.get(name)
        return None if process is None else process.link

    def limits_watts(self, *nodes: str) -> int:
        """What the limits of all GPUs of these nodes (none named: of all) add up to, as the hardware has them."""
        devices = [device for name in nodes or NODES for device in self.machines[name].devices]
        return sum(device.read().requested_limit_milliwatts for device in devices) // 1000

    def leader(self) -> str | None:
        return next((name for name, item in self.operators.items() if item.leads), None)

    def journal_path(self, name: str) -> Path:
        return self._folder / f"{name}.journal"


def new_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for journals, in memory where there is such a place: a schedule writes thousands of records."""
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(prefix="flyball-", dir=memory if memory.is_dir() else None)
