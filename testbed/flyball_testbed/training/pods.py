"""The example in containers on two real nodes: PyTorch from Debian's packages, of which each container sees the folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from flyball_testbed.controlplane.api import ApiClient, Json
from flyball_testbed.controlplane.programs.binaries import Binaries
from flyball_testbed.real_site import RealSite, mounted, programs_of
from flyball_testbed.training import pytorch
from flyball_testbed.training.run import GPUS, PACE, ROOT, SCRIPT, Run, Training

NODES = 2
PYTHON = "/usr/bin/python3.13"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
ENVIRONMENT = {
    "PYTHON_EXEC": PYTHON,
    "LD_LIBRARY_PATH": f"{LIBRARIES}/blas:{LIBRARIES}/lapack:/usr/lib",
    "GLOO_SOCKET_IFNAME": "eth0",
    "HOME": "/tmp",  # noqa: S108 - the container's own
}
NODE_PATH = "/api/v1/nodes"


class PodSite:
    """Two real nodes with two GPUs each."""

    def __init__(self, site: RealSite) -> None:
        self._site = site

    @property
    def api(self) -> ApiClient:
        return self._site.api

    def check(self) -> None:
        self._site.check()

    def ranks(self) -> list[int]:
        launchers = set(self._site.pod_processes("torch.distributed.run"))
        return [pid for pid in self._site.pod_processes(str(SCRIPT)) if pid not in launchers]

    def referee_summary(self) -> Json:
        return self._site.referee_summary()


@contextlib.contextmanager
def started_site(out: Path, say: Callable[[str], None], binaries: Binaries | None = None) -> Iterator[PodSite]:
    """The nodes, with everything of Flyball's on them. Raises what `RealSite.start` raises."""
    with RealSite.start(
        out / "site", nodes=NODES, gpus_per_node=GPUS // NODES, operator_arguments=PACE, binaries=binaries, report=say
    ) as site:
        yield PodSite(site)


def manifest(training: Training, out: Path) -> Json:
    """The job, in containers that see Debian's PyTorch, the repository, and of this machine the folder `out`."""
    root = pytorch.get_debian()
    made = training.manifest(out / "elastic")
    checkpoints = out / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    pod = made["spec"]["template"]["spec"]
    (trainer,) = pod["containers"]
    kept = [variable for variable in trainer["env"] if variable["name"] not in ENVIRONMENT]
    added = [{"name": name, "value": value} for name, value in ENVIRONMENT.items()]
    trainer = {**trainer, "command": [PYTHON, *trainer["command"][1:]], "env": [*kept, *added]}
    volume = {"name": "checkpoint", "hostPath": {"path": str(checkpoints), "type": "Directory"}}
    places = {**programs_of(root), str(ROOT): ROOT}
    made["spec"]["template"]["spec"] = mounted(
        {**pod, "containers": [trainer], "volumes": [volume]}, places, writable=[out / "elastic"]
    )
    return made


def scenario(run: Run, training: Training, out: Path, phase_steps: int) -> None:
    """All that befalls the job. Raises DemoFailed."""
    largest = GPUS * 400
    run.cap(largest, "")
    run.apply(manifest(training, out), "submitted for 1 GPU")
    run.wait_steps(phase_steps, 1)
    run.resize(4)
    run.wait_steps(phase_steps, 4)
    run.evict("a pod is evicted")
    run.wait_steps(phase_steps, 4)
    run.resize(2)
    run.wait_steps(phase_steps, 2)
    (node,) = nodes_of(run.pods())
    run.api.patch(f"{NODE_PATH}/{node}", {"spec": {"unschedulable": True}})
    run.evict("its node is drained")
    run.wait_steps(phase_steps, 2)
    run.require(nodes_of(run.pods()) != [node], "it moved to the other node")
    run.api.patch(f"{NODE_PATH}/{node}", {"spec": {"unschedulable": None}})
    run.kill_one_rank()
    run.wait_steps(phase_steps, 2)
    run.cap(largest * 3 // 5, "cap falls to 60 %")
    run.resize(4)
    run.wait_end()


def nodes_of(pods: Sequence[Json]) -> list[str]:
    """Where pods run."""
    return sorted({pod["spec"]["nodeName"] for pod in pods})
