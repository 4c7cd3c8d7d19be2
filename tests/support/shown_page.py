"""The page over a cluster that a test makes up: its documents from real rows, and its server on loopback."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import uvicorn
from fastapi import FastAPI
from flyball_api.energy.profile import EnergyProfile, read_energy_profile
from flyball_api.energy_aware_job import EnergyAwareJob, read_energy_aware_job
from flyball_api.event import EventView, read_event
from flyball_page import documents
from flyball_page.app import FindViewer, make_app
from flyball_page.history import PowerHistory, PowerSample
from flyball_page.main import PageConnection
from flyball_page.published import Published
from flyball_views.jobs import frontier_of
from flyball_views.overview import Overview, read_overview
from uvicorn.protocols.http.h11_impl import H11Protocol

from tests.support import shown_cluster
from tests.support.operator_objects import grant, raw_device, raw_gpu_node, raw_job, raw_node

Json = dict[str, Any]


@dataclass
class MadeDocuments:
    """`Documents` of one overview, which a test may exchange; `asked` counts what was asked for.

    `objects` has the jobs as they are read, by their keys: what frontiers follow from.
    """

    view: Overview
    power: PowerHistory = field(default_factory=lambda: PowerHistory(6 * 3600))
    events: list[EventView] = field(default_factory=list)
    objects: dict[str, EnergyAwareJob] = field(default_factory=dict)
    profiles: list[EnergyProfile] = field(default_factory=list)
    not_ready: str = ""
    leader_seen: float | None = None
    asked: dict[str, int] = field(default_factory=dict)

    @property
    def owing(self) -> list[str]:
        """Whoever owes an acknowledgement has owed it for long."""
        return [node.name for node in self.view.nodes if not node.acknowledged_current]

    def why_not_ready(self) -> str:
        return self.not_ready

    def _published(self, name: str, document: Any) -> Published:
        self.asked[name] = self.asked.get(name, 0) + 1
        return Published.of(document)

    def overview(self) -> Published:
        now = self.view.time.timestamp()
        document = documents.overview_document(
            self.view,
            began=now - 7200,
            leader_seen=now if self.leader_seen is None else self.leader_seen,
            copies={"PowerCaps": now, "GPUNodes": now},
            events=self.events,
        )
        return self._published("overview", document)

    def nodes(self) -> Published:
        return self._published("nodes", documents.nodes_document(self.view, self.owing))

    def node(self, name: str) -> Published | None:
        row = next((row for row in self.view.nodes if row.name == name), None)
        return None if row is None else self._published("node", documents.node_document(self.view, row, self.owing))

    def jobs(self, namespaces: frozenset[str] | None) -> Published:
        return self._published("jobs", documents.jobs_document(self.view, self.events, namespaces))

    def job(self, namespace: str, name: str, *, profiles: bool) -> Published | None:
        row = next((row for row in self.view.jobs if (row.namespace, row.name) == (namespace, name)), None)
        if row is None:
            return None
        learned, whole = self.profiles if profiles else None, self.objects.get(row.key)
        frontier = () if whole is None else frontier_of(whole, learned or ())
        return self._published("job", documents.job_document(self.view, row, learned, self.events, frontier))

    def history(self, cap: str, *, whole: bool) -> Published | None:
        found = self.power.document(cap, whole=whole)
        return None if found is None else self._published("history", found)


def made_event(
    reason: str, kind: str, name: str, note: str, *, namespace: str = "", warning: bool = False
) -> EventView:
    return read_event(
        {
            "metadata": {"name": f"{name}.1", "namespace": namespace or "default"},
            "eventTime": "2030-06-01T11:58:00.000000Z",
            "type": "Warning" if warning else "Normal",
            "reason": reason,
            "note": note,
            "regarding": {"kind": kind, "namespace": namespace, "name": name},
        }
    )


def small_page() -> MadeDocuments:
    """The small cluster with something wrong here and there, and an hour of power of each cap with a gap in it."""
    made = MadeDocuments(read_overview(shown_cluster.NOW, **shown_cluster.cluster()))
    made.objects = {job.key: job for job in map(read_energy_aware_job, shown_cluster.cluster()["jobs"])}
    made.profiles = [read_energy_profile(shown_cluster.profile())]
    made.events = [
        made_event("Lowering", "PowerCap", "cluster", "from 1200 to 600 W"),
        made_event("DeadlineAtRisk", JOB, "train", "nothing meets it", namespace="team", warning=True),
    ]
    fill_history(made, {"cluster": 600, "row-a": 1000})
    return made


JOB = documents.JOB_KIND


def fill_history(made: MadeDocuments, caps: Mapping[str, int], seconds: int = 3600) -> None:
    """Power that follows its cap down and up again, with some minutes of which nothing is known."""
    end = made.view.time.timestamp()
    for ago in range(seconds, 0, -5):
        if 1200 < ago <= 1500:
            continue
        share = 0.6 if 1500 < ago <= 2400 else 1.0
        wave = 0.05 * ((ago // 30) % 7) / 7
        made.power.add(
            end - ago,
            {
                name: PowerSample(int(watts * share), int(watts * share * 0.97), int(watts * share * (0.75 + wave)))
                for name, watts in caps.items()
            },
        )


def large_cluster(nodes: int, jobs: int = 200, rows: int = 20, wave: int = 0) -> Overview:
    """A cluster of many nodes of eight GPUs, of which one in 97 is not well; `wave` moves every figure a little."""
    now = datetime.now(UTC).replace(microsecond=0)
    gpu_nodes, plain = [], []
    for number in range(nodes):
        name = f"gpu-{number:04d}"
        limit = 100_000 + 300_000 * ((number * 7 + wave) % 23) // 22
        devices = [
            raw_device(
                number * 8 + index,
                healthy=not (number % 97 == 5 and index == 3),
                requestedMilliwatts=limit,
                enforcedMilliwatts=limit,
            )
            for index in range(8)
        ]
        for device in devices:
            device["powerMilliwatts"] = limit * 9 // 10
        if number % 97 == 11:
            devices = []
        raw = raw_gpu_node(
            name, grant(8 * limit, generation=2), devices=devices, limits=8 * limit,
            acknowledged=(1, 1) if number % 97 == 17 else (1, 2),
        )  # fmt: skip
        raw["metadata"].setdefault("labels", {})["row"] = f"row-{number * rows // nodes + 1}"
        gpu_nodes.append(raw)
        node = raw_node(name, ready=number % 97 != 23)
        node["metadata"]["labels"]["row"] = f"row-{number * rows // nodes + 1}"
        plain.append(node)
    cap = shown_cluster.held_cap()
    cap["metadata"]["name"] = "cluster"
    cap["spec"] = {"watts": nodes * 2400}
    cap["status"] |= {
        "effectiveWatts": nodes * 2400,
        "committedWatts": nodes * 2300,
        "measuredWatts": nodes * 1800 + wave,
        "headroomWatts": nodes * 100,
        "nodes": nodes,
    }
    cap["status"].pop("activeSchedule", None)
    made_jobs = []
    for number in range(jobs):
        gpus = (1, 2, 4, 8, 16)[number % 5]
        made_jobs.append(
            raw_job(
                f"train-{number:03d}",
                namespace=("vision", "language", "speech")[number % 3],
                gpus={"min": gpus, "max": 2 * gpus},
                status={
                    "observedGeneration": 1,
                    "state": "Running",
                    "allocation": {"gpus": gpus, "clockMegahertz": 1200, "powerLimitWatts": 300},
                    "applied": {"gpus": gpus, "clockMegahertz": 1200, "powerLimitWatts": 300},
                    "progress": {"iterations": (number * 37 + wave) % 1000, "iterationsPerKilosecond": 900},
                    "energy": {
                        "consumedKilojoules": 900 * number,
                        "projectedKilojoules": 4000 * number,
                        "watts": 240 * gpus,
                    },
                    "explanation": f"{gpus} GPUs at 1200 MHz: a second saved costs more joules than the cluster's price",
                },
            )
        )
    lease = shown_cluster.lease(renewed=(now - timedelta(seconds=1)).isoformat().replace("+00:00", "Z"))
    return read_overview(now, [cap], gpu_nodes, made_jobs, plain, lease)


def large_page(nodes: int, jobs: int = 200) -> MadeDocuments:
    made = MadeDocuments(large_cluster(nodes, jobs))
    fill_history(made, {"cluster": nodes * 2400})
    return made


@contextlib.contextmanager
def served(app: FastAPI, http: type[H11Protocol] = PageConnection) -> Iterator[str]:
    """The application on a free port of loopback, as the page's process serves it, or by `http`; its address."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(app, http=http, ws="none", lifespan="off", log_config=None, access_log=False)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
        listening.close()


@contextlib.contextmanager
def served_page(made: MadeDocuments, find_viewer: FindViewer | None = None) -> Iterator[str]:
    with served(make_app(made, find_viewer, max_requests_per_second=10_000)) as address:
        yield address
