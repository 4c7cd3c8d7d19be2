"""Everything that can happen in a schedule, as data: drawn from a seed, applied to a world, left out one by one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from flyball_simulated_gpu.device import DeviceFault

from tests.support.operator_objects import NOW
from tests.support.power_cluster import DEFAULT, GPUS, LARGEST, MIN, NODES, SELECTORS, cap_watts
from tests.support.schedules.processes import SETTINGS
from tests.support.schedules.world import OPERATORS, Beginning, World

FIRST_SECOND, LAST_SECOND, END_SECOND = 2.0, 14.0, 20.0
# In so many of the schedules faults begin at once, while nobody leads, no GPUNode is made and nothing is granted.
SHARE_FROM_THE_START = 0.25
MOST_FAULTS = 14
TENTHS = (2, 3, 5, 7, 10)
WISHES_WATTS = (MIN, LARGEST, 250, DEFAULT)
PLACES = len(NODES) * GPUS


@dataclass(frozen=True)
class Fault:
    """One thing that happens: when, what, to whom, for how long, and a number whose meaning the kind knows."""

    at: float
    kind: str
    target: str
    seconds: float
    number: int

    def __str__(self) -> str:
        return f"{self.at:6.2f} s  {self.kind}, {self.target}, {self.seconds:.2f} s, {self.number}"


Apply = Callable[[World, Fault], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Kind:
    """A kind of fault; `group` names what can be switched off together."""

    name: str
    group: str
    targets: tuple[str, ...]
    apply: Apply
    longest_seconds: float = 5.0


KINDS: dict[str, Kind] = {}
CLIENTS = (*OPERATORS, *NODES)
CAPS = tuple(SELECTORS)


def _kind(name: str, group: str, targets: tuple[str, ...], longest_seconds: float = 5.0) -> Callable[[Apply], Apply]:
    def register(apply: Apply) -> Apply:
        KINDS[name] = Kind(name, group, targets, apply, longest_seconds)
        return apply

    return register


# --- messages ----------------------------------------------------------------------------------------------------------


@_kind("requests and answers are lost, late or doubled", "messages", CLIENTS)
async def _trouble(world: World, fault: Fault) -> None:
    link = world.link_of(fault.target)
    if link is not None:
        link.troubled_until = fault.at + fault.seconds


@_kind("cut off", "messages", CLIENTS, 8.0)
async def _cut(world: World, fault: Fault) -> None:
    link = world.link_of(fault.target)
    if link is not None:
        link.cut_until = fault.at + fault.seconds


@_kind("watches bring everything late", "messages", CLIENTS)
async def _lag(world: World, fault: Fault) -> None:
    link = world.link_of(fault.target)
    if link is not None:
        link.lagging_until, link.lag_seconds = fault.at + fault.seconds, 0.5 + fault.number % 6


@_kind("watches break", "messages", CLIENTS)
async def _break(world: World, fault: Fault) -> None:
    link = world.link_of(fault.target)
    if link is not None:
        link.break_watches()


# --- the API server ------------------------------------------------------------------------------------------------------


@_kind("the API server is away", "api", ("all",), 6.0)
async def _away(world: World, fault: Fault) -> None:
    world.network.go_down()
    world.later(fault.seconds, lambda: _come_up(world))


async def _come_up(world: World) -> None:
    world.network.come_up()


@_kind("etcd is restored from a backup", "restore", ("all",), 7.0)
async def _restore(world: World, fault: Fault) -> None:
    """From a backup of what the store became: one that was restored away meanwhile has versions of its own, which may be
    those of other objects now, and nobody could tell."""
    backup, restores = world.api.backup(), world.api.restores

    async def restore() -> None:
        if world.api.restores != restores:
            return
        world.network.go_down()
        world.api.restore(backup)
        world.note("etcd restored")
        world.referee.everything_is_as_of_old(world.api.items.get("powercaps", {}).values())
        for machine in world.machines.values():
            node = world.api.get("nodes", machine.name)
            if node is not None:
                world.referee.cable(machine.name, node["metadata"]["labels"], "restore")
        world.later(0.3, lambda: _come_up(world))
        world.later(0.3, lambda: _label_again(world))

    world.later(fault.seconds, restore)


async def _label_again(world: World) -> None:
    """Whoever relabelled a Node since the backup does so again: of that, the store remembers nothing."""
    for machine in world.machines.values():
        node = world.api.get("nodes", machine.name)
        if node is not None:
            world.referee.cable(machine.name, machine.labels, "relabelled")
            world.api.put("nodes", machine.as_node())


# --- operators -----------------------------------------------------------------------------------------------------------


@_kind("operator dies", "operators", OPERATORS, 8.0)
async def _operator_dies(world: World, fault: Fault) -> None:
    await world.stop_operator(fault.target, fault.seconds)


@_kind("operator is stopped", "operators", OPERATORS, 4.0)
async def _operator_stops(world: World, fault: Fault) -> None:
    await world.stop_operator(fault.target, fault.seconds, gracefully=True)


@_kind("the leader dies while the other one's watches are behind", "operators", ("all",), 6.0)
async def _old_copy(world: World, fault: Fault) -> None:
    for name, process in world.operators.items():
        if not process.leads:
            process.link.lagging_until = fault.at + fault.seconds
            process.link.lag_seconds = fault.seconds
            world.note(f"operator {name}'s watches fall behind")

    async def die() -> None:
        leader = world.leader()
        if leader is not None:
            await world.stop_operator(leader, 1.0 + fault.number % 5)

    world.later(fault.seconds / 3, die)


@_kind("operator stands still", "operators", OPERATORS, 6.0)
async def _operator_freezes(world: World, fault: Fault) -> None:
    """Its machine gives it no time, for longer than its claim to the Lease lasts; then it goes on where it was."""
    await world.freeze(fault.target, fault.seconds)


@_kind("operator's clock steps", "clocks", OPERATORS)
async def _clock(world: World, fault: Fault) -> None:
    world.wall_offsets[fault.target] += (-7200.0, 7200.0, -1e9, 3.0)[fault.number % 4]


@_kind("operator's clock since boot runs fast or slow", "clocks", OPERATORS)
async def _clock_rate(world: World, fault: Fault) -> None:
    """By less than the tenth that a claim to the Lease gives up: from its next start on, as it does after a boot."""
    world.clock_rates[fault.target] = (0.96, 0.98, 1.02, 1.04)[fault.number % 4]
    await world.stop_operator(fault.target, fault.seconds)


# --- agents ----------------------------------------------------------------------------------------------------------


@_kind("agent dies", "agents", NODES)
async def _agent_dies(world: World, fault: Fault) -> None:
    await world.stop_agent(fault.target, fault.seconds)


@_kind("agent dies for long", "agents", NODES, 20.0)
async def _agent_dies_for_long(world: World, fault: Fault) -> None:
    await world.stop_agent(fault.target, fault.seconds)


@_kind("agent stands still", "agents", NODES, 12.0)
async def _agent_freezes(world: World, fault: Fault) -> None:
    """Its machine gives it no time, for longer than it may be silent; what it has asked of GPUs goes on."""
    await world.freeze(fault.target, fault.seconds)


@_kind("agent dies and starts while the API server is away", "agents", NODES)
async def _agent_restarts_alone(world: World, fault: Fault) -> None:
    world.network.go_down()
    await world.stop_agent(fault.target, 0.3)
    world.later(fault.seconds, lambda: _come_up(world))


@_kind("disk fails", "disks", NODES)
async def _disk(world: World, fault: Fault) -> None:
    disk = world.machines[fault.target].disk
    disk.sick = True

    async def heal() -> None:
        disk.sick = False

    world.later(fault.seconds, heal)


@_kind("every disk hangs", "disks", ("all",))
async def _hang(world: World, fault: Fault) -> None:
    world.disks.hung = True

    async def go_on() -> None:
        world.disks.hung = False

    world.later(fault.seconds, go_on)


@_kind("disk fails, a cap falls, the disk heals and the agent starts anew", "disks", NODES, 5.0)
async def _sick_restart(world: World, fault: Fault) -> None:
    disk = world.machines[fault.target].disk
    disk.sick = True
    world.set_cap("hall", TENTHS[fault.number % 3])

    async def restart() -> None:
        await world.stop_agent(fault.target, 0.2)
        disk.sick = False
        if fault.number % 2:
            world.network.go_down()
            world.later(4.0, lambda: _come_up(world))

    world.later(fault.seconds, restart)


@_kind("journal is damaged, and the agent starts anew", "disks", NODES, 3.0)
async def _damaged(world: World, fault: Fault) -> None:
    await world.stop_agent(fault.target, fault.seconds)
    path = world.journal_path(fault.target)
    if path.exists() and (content := bytearray(path.read_bytes())):
        content[fault.number % len(content)] ^= 1
        path.write_bytes(content)


@_kind("journal is lost, and the agent starts anew", "disks", NODES, 3.0)
async def _lost_journal(world: World, fault: Fault) -> None:
    await world.stop_agent(fault.target, fault.seconds)
    world.journal_path(fault.target).unlink(missing_ok=True)


@_kind("journal comes back as it was, and the agent starts anew", "disks", NODES, 4.0)
async def _old_journal(world: World, fault: Fault) -> None:
    """As where a node's disk is put back to a snapshot, of its own journal: with another node's no agent ever starts."""
    if fault.target not in world.agents:
        return
    path = world.journal_path(fault.target)
    before = path.read_bytes() if path.exists() else b""

    async def put_back() -> None:
        await world.stop_agent(fault.target, 0.2)
        path.write_bytes(before)

    world.later(fault.seconds, put_back)


@_kind("journal of another node is put in its place, and the agent starts anew", "disks", NODES, 4.0)
async def _foreign_journal(world: World, fault: Fault) -> None:
    """Until somebody moves it away, which begins a new one."""
    path, other = world.journal_path(fault.target), world.journal_path(NODES[fault.number % len(NODES)])
    await world.stop_agent(fault.target, 0.2)
    if other.exists():
        path.write_bytes(other.read_bytes())

    async def move_away() -> None:
        if fault.target not in world.agents:
            path.unlink(missing_ok=True)

    world.later(fault.seconds, move_away)


# --- hardware ------------------------------------------------------------------------------------------------------------


@_kind("reboot", "reboots", NODES, 9.0)
async def _reboot(world: World, fault: Fault) -> None:
    """The kubelet comes back before the agent, which may take its time."""
    await world.stop_agent(fault.target, fault.seconds)
    machine = world.machines[fault.target]
    machine.reboot()
    noticed = 0.2 + (fault.number % 5) / 2

    async def kubelet() -> None:
        if world.api.get("nodes", machine.name) is not None:
            world.api.put("nodes", machine.as_node())

    async def not_ready() -> None:
        if world.api.get("nodes", machine.name) is not None:
            world.api.put("nodes", {**machine.as_node(ready=False), "metadata": {"name": machine.name}})
        world.later(1.0, kubelet)

    world.later(noticed, not_ready if fault.number % 2 else kubelet)


@_kind("node is imaged anew, and its driver comes late", "reboots", NODES, 6.0)
async def _imaged(world: World, fault: Fault) -> None:
    """Of what it was only its name is left: no journal, and nothing that shows GPUs before there is a driver."""
    machine, gpu_node = world.machines[fault.target], world.api.get("gpunodes", fault.target)
    if gpu_node is None or not gpu_node.get("status", {}).get("devices"):
        return  # its Node alone says that it has GPUs
    await world.stop_agent(fault.target, 0.1 + fault.number % 10 / 10)
    machine.reboot()
    machine.disk.forget()
    world.journal_path(fault.target).unlink(missing_ok=True)
    machine.driver_comes_at = asyncio.get_running_loop().time() + fault.seconds

    async def kubelet() -> None:
        if world.api.get("nodes", machine.name) is not None:
            world.api.put("nodes", machine.as_node())

    world.later(0.2 + fault.number % 5 / 5, kubelet)
    world.later(fault.seconds + 0.5, kubelet)


@_kind("driver reload", "reboots", NODES)
async def _reload(world: World, fault: Fault) -> None:
    world.machines[fault.target].reload_driver("driver reload")


@_kind("driver reload that brings no lost GPU back", "reboots", NODES)
async def _reload_without_repair(world: World, fault: Fault) -> None:
    stays = DeviceFault.NOT_PERSISTENT | DeviceFault.LOST | DeviceFault.RESET_REQUIRED
    world.machines[fault.target].reload_driver("driver reload", stays)


@_kind("driver reload while the agent is away", "reboots", NODES, 10.0)
async def _reload_alone(world: World, fault: Fault) -> None:
    await world.stop_agent(fault.target, fault.seconds)
    world.machines[fault.target].reload_driver("driver reload without agent")


@_kind("another hand sets a limit", "drift", NODES)
async def _drift(world: World, fault: Fault) -> None:
    machine = world.machines[fault.target]
    device = machine.devices[fault.number % GPUS]
    watts = (LARGEST, DEFAULT, MIN, 250)[fault.number // GPUS % 4]
    settles_seconds = machine.node.settle_milliseconds / 1000
    world.referee.by_itself(device, "drift", lambda: device.set_power_limit_milliwatts(watts * 1000), settles_seconds)


def _flag(name: str, flag: DeviceFault) -> None:
    @_kind(name, "devices", NODES)
    async def set_flag(world: World, fault: Fault) -> None:
        device = world.machines[fault.target].devices[fault.number % GPUS]
        device.flags |= flag

        async def clear() -> None:
            device.flags &= ~flag

        world.later(fault.seconds, clear)


_flag("GPU is lost", DeviceFault.LOST)
_flag("GPU hangs", DeviceFault.HANG)
_flag("GPU's setter lies", DeviceFault.SETTERS_LIE)
_flag("GPU's setter fails", DeviceFault.SETTERS_FAIL)
_flag("GPU may not be set", DeviceFault.NO_PERMISSION)
_flag("GPU needs a reset", DeviceFault.RESET_REQUIRED)
_flag("GPU reports nonsense", DeviceFault.IMPLAUSIBLE_POWER)
_flag("GPU rounds limits up", DeviceFault.COARSE)


@_kind("GPU takes limits late", "devices", NODES)
async def _late(world: World, fault: Fault) -> None:
    device = world.machines[fault.target].watched[fault.number % GPUS]
    device.late_seconds = 0.1 + (fault.number % 7) / 2

    async def clear() -> None:
        device.late_seconds = 0.0

    world.later(fault.seconds, clear)


@_kind("limits settle late", "devices", NODES)
async def _settle(world: World, fault: Fault) -> None:
    node = world.machines[fault.target].node
    node.settle_milliseconds = 50 + 300 * (fault.number % 10)

    async def clear() -> None:
        node.settle_milliseconds = 0

    world.later(fault.seconds, clear)


@_kind("out-of-band cap", "devices", NODES)
async def _out_of_band(world: World, fault: Fault) -> None:
    device = world.machines[fault.target].devices[fault.number % GPUS]
    cap = (80, 150, 300)[fault.number % 3] * 1000
    # Where a lower one stands, the GPU comes to more by it.
    world.referee.by_itself(device, "drift", lambda: device.set_out_of_band_cap_milliwatts(cap))

    async def clear() -> None:
        # What stands then is the agent's, or another hand's that was set meanwhile.
        world.referee.by_itself(device, "drift", lambda: device.set_out_of_band_cap_milliwatts(0))

    world.later(fault.seconds, clear)


@_kind("energy counter begins anew", "devices", NODES)
async def _counter(world: World, fault: Fault) -> None:
    world.machines[fault.target].devices[fault.number % GPUS].reset_energy_counter()


# --- Kubernetes' objects -------------------------------------------------------------------------------------------------


@_kind("Node is not ready", "objects", NODES)
async def _not_ready(world: World, fault: Fault) -> None:
    machine = world.machines[fault.target]
    if world.api.get("nodes", machine.name) is None:
        return
    labels = {"name": machine.name}
    world.api.put("nodes", {**machine.as_node(ready=False), "metadata": labels})

    async def ready() -> None:
        if world.api.get("nodes", machine.name) is not None:
            world.api.put("nodes", {**machine.as_node(), "metadata": labels})

    world.later(fault.seconds, ready)


@_kind("GPUNode is deleted", "objects", NODES)
async def _gpu_node_deleted(world: World, fault: Fault) -> None:
    world.api.remove("gpunodes", fault.target)


@_kind("GPUNode is deleted without its finalizer", "objects", NODES)
async def _gpu_node_forced(world: World, fault: Fault) -> None:
    """And made anew by the operator, under the same name. Where its Node is gone, too, or stands there without its labels
    or its GPUs, that would be the word that the machine is, or where it hangs: then it is deleted as everything else is. (A
    store that was put back may show GPUs for a moment, of which the kubelet knows none as yet.)"""
    node, machine = world.api.get("nodes", fault.target), world.machines[fault.target]
    if (
        node is None
        or not machine.labels.items() <= node["metadata"].get("labels", {}).items()
        or not node["status"]["capacity"]
        or not machine.shows_gpus
    ):
        world.api.remove("gpunodes", fault.target)
    else:
        world.api.force_away("gpunodes", fault.target)


@_kind("GPUNode cannot be read", "objects", NODES, 3.0)
async def _unreadable(world: World, fault: Fault) -> None:
    """Until somebody puts right what somebody had edited."""
    item = world.api.get("gpunodes", fault.target)
    if item is None or not isinstance(item["spec"].get("jobs"), list):
        return
    jobs = item["spec"]["jobs"]
    world.api.put("gpunodes", {**item, "spec": item["spec"] | {"jobs": "none"}})

    async def put_right() -> None:
        now = world.api.get("gpunodes", fault.target)
        if now is not None and now["spec"].get("jobs") == "none":
            world.api.put("gpunodes", {**now, "spec": now["spec"] | {"jobs": jobs}})

    world.later(fault.seconds, put_right)


@_kind("brakes and their acknowledgements are deleted", "objects", ("all",))
async def _brakes_deleted(world: World, fault: Fault) -> None:
    for plural in ("powerbrakes", "brakeacknowledgements"):
        for name in list(world.api.items.get(plural, {})):
            world.api.remove(plural, name)


@_kind("Node is deleted and registered again", "objects", NODES)
async def _node_deleted(world: World, fault: Fault) -> None:
    await _register_anew(world, fault, labelled_after=0.0)


async def _register_anew(world: World, fault: Fault, labelled_after: float) -> None:
    machine = world.machines[fault.target]
    gpu_node = world.api.get("gpunodes", machine.name)
    if gpu_node is None:
        return  # its finalizer was taken away, and both gone is the word that the machine is
    if not machine.labels.items() <= gpu_node["metadata"].get("labels", {}).items():
        return  # its Node alone says where it hangs since a moment ago: without it nobody ever could
    world.api.remove("nodes", machine.name)

    async def label() -> None:
        world.api.put("nodes", machine.as_node())

    async def register() -> None:
        world.api.put("nodes", machine.as_node(labelled=not labelled_after))
        if labelled_after:
            world.later(labelled_after, label)

    world.later(fault.seconds, register)


@_kind("Node is deleted and registered again without its labels", "membership", NODES, 4.0)
async def _node_bare(world: World, fault: Fault) -> None:
    await _register_anew(world, fault, labelled_after=5.0)


@_kind("node is hung elsewhere and relabelled", "membership", NODES)
async def _relabelled(world: World, fault: Fault) -> None:
    """Where its Node is there: else nobody can say at the API server where it hangs now."""
    machine = world.machines[fault.target]
    if world.api.get("nodes", machine.name) is None:
        return
    machine.labels = ({"row": "1"}, {"rack": "1"}, {"row": "1", "rack": "1"})[fault.number % 3]
    world.referee.cable(machine.name, machine.labels, "relabelled")
    world.api.put("nodes", machine.as_node())


@_kind("PowerCap is deleted and made again", "deletion", CAPS)
async def _cap_deleted(world: World, fault: Fault) -> None:
    world.api.remove("powercaps", fault.target)

    async def make() -> None:
        if world.api.get("powercaps", fault.target) is None:
            world.set_cap(fault.target, TENTHS[fault.number % len(TENTHS)])

    world.later(fault.seconds, make)


@_kind("PowerCap is deleted without its finalizer and made again", "deletion", CAPS)
async def _cap_forced(world: World, fault: Fault) -> None:
    world.api.force_away("powercaps", fault.target)

    async def make() -> None:
        if world.api.get("powercaps", fault.target) is None:
            world.set_cap(fault.target, TENTHS[fault.number % len(TENTHS)])

    world.later(fault.seconds, make)


# --- what people want ------------------------------------------------------------------------------------------------


@_kind("cap changes", "wishes", CAPS)
async def _cap(world: World, fault: Fault) -> None:
    if world.api.get("powercaps", fault.target) is not None:
        world.set_cap(fault.target, (1, *TENTHS)[fault.number % 6])


@_kind("cap selects other nodes", "wishes", CAPS)
async def _selector(world: World, fault: Fault) -> None:
    world.set_selector(fault.target, ({}, {"row": "1"}, {"rack": "1"}, {"row": "1", "rack": "1"})[fault.number % 4])


@_kind("an emergency is declared", "wishes", CAPS)
async def _emergency(world: World, fault: Fault) -> None:
    """And ended by the same people."""
    world.emergency(fault.target, "Active")

    async def end() -> None:
        world.emergency(fault.target, "Ended")

    world.later(fault.seconds, end)


@_kind("the plan changes", "wishes", ("all",))
async def _plan(world: World, fault: Fault) -> None:
    world.plan(wishes_of(random.Random(fault.number)))


@_kind("a pod comes or goes", "wishes", NODES)
async def _pod(world: World, fault: Fault) -> None:
    """Of a job of ours, or foreign; the kubelet may say so before or after."""
    machine, draw = world.machines[fault.target], random.Random(fault.number)
    index, gpu = draw.randint(0, GPUS + 1), draw.choice([None, *range(GPUS)])
    world.pods ^= {(machine.name, index)}
    name = f"{machine.name}-{index}"
    machine.held = {at: other for at, other in machine.held.items() if other != name and at != gpu}
    if gpu is not None:
        machine.held[gpu] = name
    world.show_pods()
    for item in world.operators.values():
        item.operator.wake()


@_kind("a foreign pod asks for another share", "wishes", NODES)
async def _permille(world: World, fault: Fault) -> None:
    """By its annotation, there or before it comes."""
    place = (fault.target, GPUS + fault.number % 2)
    world.asked_permille[place] = (1, 300, 1000)[fault.number // 2 % 3]
    world.show_pods()
    for item in world.operators.values():
        item.operator.wake()


# --- what else is said of caps, and to operators -------------------------------------------------------------------------

# The periods of these budgets are as short as all times of a schedule; the most that all GPUs can draw is 2.4 to 2.7 kW.
CAP_FIELDS = (
    {"staticOverheadWatts": 0},
    {"staticOverheadWatts": 150},
    {"staticOverheadWatts": 390},
    {"failsafe": "Hold", "failsafeHoldSeconds": 8},
    {"failsafe": "Limit", "failsafeWattsPerGpu": 150},
    {"failsafe": "Minimum"},
    {"reserveNodes": 1},
    {"reserveNodes": 0},
    {"rampWattsPerSecond": 60},
    {"foreignPods": "Reserve"},
    {"onInfeasible": "FloorOnly"},
    {"permilleOfMax": 300},
    {"permilleOfMax": 650},
    {"energyBudget": {"kilojoules": 4, "periodSeconds": 5}},
    {"energyBudget": {"kilojoules": 9, "periodSeconds": 7}},
)


@_kind("cap's other fields change", "fields", CAPS)
async def _fields(world: World, fault: Fault) -> None:
    cap, fields = world.api.get("powercaps", fault.target), dict(CAP_FIELDS[fault.number % len(CAP_FIELDS)])
    if cap is not None and fields.get("failsafe") == "Hold" and cap["spec"]["enforcement"] == "Expected":
        return  # refused by the CRD
    world.say_of_cap(fault.target, fields)


@_kind("cap turns from limits to predicted draw, or back", "fields", CAPS)
async def _enforcement(world: World, fault: Fault) -> None:
    """With other watts."""
    cap = world.api.get("powercaps", fault.target)
    if cap is not None and cap["spec"].get("failsafe") != "Hold":
        world.set_cap(fault.target, TENTHS[fault.number % len(TENTHS)], cap["spec"]["enforcement"] == "Hard")


@_kind("cap gets a window that begins soon", "fields", CAPS)
async def _window(world: World, fault: Fault) -> None:
    begins = NOW + timedelta(seconds=fault.at + fault.number % 30 / 10)
    window = {
        "name": "event",
        "watts": cap_watts(fault.target, (1, 2, 3, 5)[fault.number // 30 % 4]),
        "start": begins.isoformat(),
        "end": (begins + timedelta(seconds=fault.seconds)).isoformat(),
    }
    world.say_of_cap(fault.target, {"schedule": [window]})


OTHER_OPTIONS: tuple[dict[str, Any], ...] = (
    {"brakes": False},
    {"grant_lease_seconds": 3},
    {"grant_lease_seconds": 12},
    {"leader_lease_seconds": 2, "leader_renew_seconds": 0.8},
    {"leader_lease_seconds": 5, "leader_renew_seconds": 2.0},
    {"status_interval_seconds": 4.0, "replan_seconds": 6.0},
    {"acknowledge_timeout_seconds": 0.6},
)


@_kind("operator starts again with other options", "operators", OPERATORS, 3.0)
async def _options(world: World, fault: Fault) -> None:
    """As in a roll-out of a change to its Deployment; the other one goes on with its own."""
    world.settings[fault.target] = replace(SETTINGS, **OTHER_OPTIONS[fault.number % len(OTHER_OPTIONS)])
    await world.stop_operator(fault.target, fault.seconds, gracefully=bool(fault.number % 2))


# --- a schedule ----------------------------------------------------------------------------------------------------------

GROUPS = frozenset(kind.group for kind in KINDS.values())


@dataclass(frozen=True)
class Schedule:
    """One schedule: how the cluster begins, and what happens to it. The same seed is the same schedule."""

    seed: int
    beginning: Beginning
    faults: tuple[Fault, ...]


def wishes_of(draw: random.Random) -> tuple[tuple[int, float], ...]:
    return tuple((draw.choice(WISHES_WATTS), draw.choice((0.5, 1.0))) for _ in range(PLACES))


def schedule_of(seed: int, groups: frozenset[str] = GROUPS) -> Schedule:
    """The schedule of a seed: faults of a random part of all kinds, so that rare ones meet often enough."""
    draw = random.Random(seed)
    beginning = Beginning(
        tuple(draw.choice(TENTHS) for _ in CAPS), tuple(draw.random() < 0.15 for _ in CAPS), wishes_of(draw)
    )
    kinds = [kind for kind in KINDS.values() if kind.group in groups]
    some = [*draw.sample(kinds, min(len(kinds), draw.randint(2, 8))), KINDS["cap changes"], KINDS["the plan changes"]]
    faults = []
    for _ in range(draw.randint(3, MOST_FAULTS)):
        kind = draw.choice(some)
        faults.append(
            Fault(
                round(draw.uniform(FIRST_SECOND, LAST_SECOND), 2),
                kind.name,
                draw.choice(kind.targets),
                round(draw.uniform(0.1, kind.longest_seconds), 2),
                draw.randrange(1000),
            )
        )
    if draw.random() < SHARE_FROM_THE_START:
        stretch = LAST_SECOND / (LAST_SECOND - FIRST_SECOND)
        faults = [replace(fault, at=round((fault.at - FIRST_SECOND) * stretch, 2)) for fault in faults]
    return Schedule(seed, beginning, tuple(sorted(faults, key=lambda fault: fault.at)))
