"""One real node as a process: `python -m flyball_testbed.realnode.machine FOLDER`, as root, in the cluster's namespace.

The process makes namespaces of the node's own (processes, mounts, network, host name) and starts process 1 in them, which
mounts what a node has of its own, joins the cluster's network, starts containerd, the kubelet, kube-proxy and the device
plugin, and starts again whichever of them ends. All that the node ever starts, mounts or connects lives in these
namespaces: when process 1 ends, by whatever signal, the kernel ends every process, mount and interface of the node. It ends
when this process does. Only the control groups remain, for `cgroups.sweep`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from flyball_testbed.controlplane import network
from flyball_testbed.controlplane.processes import ProcessIdentity
from flyball_testbed.controlplane.programs.binaries import CONTAINERD, CTR
from flyball_testbed.realnode import cgroups, nvidia_runtime
from flyball_testbed.realnode.configuration import (
    CONTAINERD_SOCKET,
    KERNEL_SETTINGS,
    KUBELET_ROOT,
    MACHINE_FILE,
    Machine,
    containerd_configuration,
    kube_proxy_configuration,
    kubelet_configuration,
    pod_network,
    service_commands,
)

# <sched.h>
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = (
    0x00020000,
    0x04000000,
    0x08000000,
    0x20000000,
    0x40000000,
)
PR_SET_PDEATHSIG = 1
START_TIMEOUT_SECONDS = 60.0
RESTART_SECONDS = 1.0

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def _mount(*arguments: str) -> None:
    answer = subprocess.run([network.tool("mount"), *arguments], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise OSError(f"mount {' '.join(arguments)}: {answer.stderr.strip()}")


# --- outside: the process that starts process 1 and ends with it --------------------------------------------------------


def launch(machine: Machine) -> int:
    """Start the node and wait for its end; process 1's exit status."""
    cgroup = cgroups.create(ProcessIdentity.own())
    _write_configuration(machine, cgroup)
    _unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID)
    connected, connect = os.pipe()
    made, make = os.pipe()
    child = os.fork()  # process 1 of the new namespace
    if child == 0:
        os.close(connect)
        os.close(made)
        _be_process_one(machine, connected, make)
    os.close(connected)
    os.close(make)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # The end of process 1 is the end of everything in its namespaces.
        signal.signal(number, lambda _number, _frame: os.kill(child, signal.SIGKILL))
    if os.read(made, 1):  # empty: it has ended in the attempt, and its log says why
        _connect(machine)
        os.write(connect, b".")
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _write_configuration(machine: Machine, cgroup: str) -> None:
    folder = machine.folder
    (folder / "cni").mkdir(exist_ok=True)
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "cni" / "10-pods.conflist").write_text(pod_network(machine))
    (folder / "containerd.toml").write_text(containerd_configuration(machine))
    (folder / "kubelet.yaml").write_text(kubelet_configuration(machine, cgroup))
    (folder / "kube-proxy.yaml").write_text(kube_proxy_configuration(machine))
    (folder / "resolv.conf").write_text("")
    if machine.hardware:
        runtime = Path(machine.container_runtime)
        wrapper = nvidia_runtime.wrapper(sys.executable, machine.runtime, machine.hardware, machine.gpu_library)
        runtime.write_text(wrapper)
        runtime.chmod(0o755)


def _connect(machine: Machine) -> None:
    """From the cluster's namespace: put the node on its bridge, and lead the way to the node's pods."""
    port = f"node-{machine.index}"
    network.run_ip(
        [
            # Named by its process id as `ip` sees it: our children are in the node's own namespace of processes.
            f"link add {port} type veth peer name eth0 netns 1",
            f"link set {port} master {network.BRIDGE} up",
            f"route replace {machine.pod_range} via {machine.address}",
        ]
    )


# --- inside: process 1 --------------------------------------------------------------------------------------------------


def _be_process_one(machine: Machine, connected: int, make: int) -> NoReturn:
    status = 1
    try:
        _check(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
        _unshare(CLONE_NEWNET)
        socket.sethostname(machine.name)
        _mount_own_file_systems(machine)
        os.write(make, b".")
        os.close(make)
        if not os.read(connected, 1):
            raise OSError("the node was not connected")
        _configure_network(machine)
        Services(machine).run()
    except BaseException as error:
        print(f"{machine.name}: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def _mount_own_file_systems(machine: Machine) -> None:
    """What the node has of its own: /proc, /run, /var, and the kernel's settings that a kubelet would change."""
    folder = machine.folder
    _mount("--make-rslave", "/")  # what is unmounted on this machine does not live on here
    _mount("-t", "proc", "proc", "/proc")
    # Written to as on any machine; what is written lies in the node's folder, and nobody else sees it.
    upper, work = folder / "var", folder / "var.work"
    upper.mkdir(exist_ok=True)
    work.mkdir(exist_ok=True)
    _mount("-t", "overlay", "overlay", "/var", "-o", f"lowerdir=/var,upperdir={upper},workdir={work}")
    _mount("-t", "tmpfs", "-o", "mode=755", "run", "/run")
    kubelet = folder / "kubelet"
    kubelet.mkdir(exist_ok=True)
    Path(KUBELET_ROOT).mkdir(parents=True, exist_ok=True)
    _mount("--bind", str(kubelet), KUBELET_ROOT)
    _mount("--make-rshared", "/")  # a kubelet's mounts are seen by the containers that were given their folder
    settings = Path("/run/kernel-settings")
    for name, value in KERNEL_SETTINGS.items():
        setting = Path("/proc/sys") / name
        if setting.exists():
            instead = settings / name
            instead.parent.mkdir(parents=True, exist_ok=True)
            instead.write_text(f"{value}\n")
            _mount("--bind", str(instead), str(setting))


def _configure_network(machine: Machine) -> None:
    network.run_ip(
        [
            "link set lo up",
            f"address add {machine.address}/{network.NODE_PREFIX_BITS} dev eth0",
            "link set eth0 up",
            f"route add default via {network.BRIDGE_ADDRESS}",
        ]
    )
    subprocess.run([network.tool("sysctl"), "-qw", *network.SETTINGS], check=True)


class Services:
    """What runs on the node: started in order, and again when it ends, as an init system would."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._commands = service_commands(machine)
        self._running: dict[int, str] = {}
        self._due: dict[str, float] = {}  # a service to start again: when, by the monotonic clock

    def run(self) -> NoReturn:
        """Start everything and look after it for ever. Raises TimeoutError where containerd does not serve."""
        # Without the variables of whoever started the cluster, and with what a login would give.
        signal.signal(signal.SIGTERM, _end)
        self._start(CONTAINERD)
        self._await_containerd()
        for image in sorted((self._machine.folder / "images").glob("*.tar")):
            self._import(image)
        for name in self._commands:
            if name != CONTAINERD:
                self._start(name)
        while True:
            self._reap()
            self._start_what_is_due()
            time.sleep(0.1)

    def _start(self, name: str) -> None:
        # A daemon in a session of its own. Not a Popen: process 1 waits for all children alike.
        command = self._commands[name]
        with self._machine.log(name).open("ab") as log:
            pid = os.posix_spawn(
                command[0],
                command,
                self._environment(),
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, log.fileno(), 1),
                    (os.POSIX_SPAWN_DUP2, log.fileno(), 2),
                ],
                setsid=True,
                setsigdef=[signal.SIGPIPE],  # which Python ignores, and a program would inherit
            )
        self._running[pid] = name

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("GOGC", "PYTHONPATH", "LANG") if name in os.environ}
        # containerd finds its shim beside itself, the kubelet and kube-proxy the machine's tools.
        programs = Path(self._machine.programs[CONTAINERD]).parent
        return {**kept, "HOME": "/root", "PATH": f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin"}

    def _await_containerd(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while True:
            with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
                client.connect(CONTAINERD_SOCKET)
                return
            self._reap()
            if CONTAINERD in self._due or time.monotonic() > deadline:
                raise TimeoutError(f"containerd does not serve; see {self._machine.log(CONTAINERD)}")
            time.sleep(0.02)

    def _import(self, image: Path) -> None:
        answer = subprocess.run(
            import_command(self._machine, image), capture_output=True, text=True, check=False, env=self._environment()
        )
        if answer.returncode != 0:
            raise OSError(f"{image}: not imported: {answer.stderr.strip()}")

    def _reap(self) -> None:
        """Take the exit status of whatever has ended; a service among them is due again in a moment."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                name = self._running.pop(pid, None)
                if name is not None:
                    code = os.waitstatus_to_exitcode(status)
                    print(f"{self._machine.name}: {name} ended with status {code}", file=sys.stderr, flush=True)
                    self._due[name] = time.monotonic() + RESTART_SECONDS

    def _start_what_is_due(self) -> None:
        now = time.monotonic()
        for name in [name for name, when in self._due.items() if when <= now]:
            del self._due[name]
            self._start(name)


def launch_command(machine: Machine) -> list[str]:
    """This program, for a node whose folder has its `machine.json`."""
    return [sys.executable, "-m", "flyball_testbed.realnode.machine", machine.directory]


def import_command(machine: Machine, image: Path) -> list[str]:
    """Import an image's tar into containerd, for pods."""
    ctr = [machine.programs[CTR], f"--address={CONTAINERD_SOCKET}", "--namespace=k8s.io"]
    return [*ctr, "images", "import", str(image)]


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(0)


def main() -> None:
    machine = Machine.read(Path(sys.argv[1]) / MACHINE_FILE)
    sys.exit(launch(machine))


if __name__ == "__main__":
    main()
