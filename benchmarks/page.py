"""What the status page's process costs on a large cluster: memory and CPU time, with people who look and nodes that report.

    python -m benchmarks.page [--nodes 1000] [--jobs 1000] [--readers 20] [--seconds 60]

The cluster is on a real API server (as in startup.py), and the page a process with its own account's rights. Then every
reader asks for all documents every two seconds, as the page in a browser does, and twenty nodes a second report anew. Ends
with 1 where the process has more resident than MOST_MEBIBYTES, half of what the chart allows it.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from flyball_api.names import DEFAULT_NAMESPACE
from flyball_testbed.controlplane.cluster import DevCluster
from flyball_testbed.controlplane.ports import LOOPBACK, free_port
from flyball_testbed.controlplane.processes import wait_until

from benchmarks.startup import GROUP, acknowledged_status, fill

MOST_MEBIBYTES = 256.0
ACCOUNT = "flyball-page"
PROGRAM = Path(sysconfig.get_path("scripts")) / "flyball"
DOCUMENTS = ("api/overview", "api/nodes", "api/jobs", "api/nodes/node-000", "api/jobs/default/job-00000")
ROUND_SECONDS, REPORTS_PER_SECOND, READY_SECONDS = 2.0, 20, 120.0
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def mebibytes(pid: int) -> tuple[float, float]:
    """What is resident of a process now, and its most since it began."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    now, most = (int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return now, most


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def read(address: str) -> int:
    request = urllib.request.Request(address, headers={"Accept-Encoding": "gzip"})  # noqa: S310 - our process on loopback
    with DIRECT.open(request, timeout=60) as answer:
        return len(answer.read())


def ready(address: str) -> bool:
    try:
        read(f"{address}readyz")
    except OSError:
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--readers", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, DevCluster.start(arguments.nodes, report=print) as cluster:
        print(f"creating {arguments.jobs} jobs and {arguments.nodes} GPUNodes")
        fill(cluster, arguments.jobs, min(200, arguments.jobs))
        kubeconfig = cluster.control_plane.service_account_kubeconfig(DEFAULT_NAMESPACE, ACCOUNT)
        port = free_port()
        address = f"http://{LOOPBACK}:{port}/"
        with (Path(folder) / "page.log").open("w") as log:
            page = subprocess.Popen(
                [str(PROGRAM), "page", "run", "--kubeconfig", str(kubeconfig), "--port", str(port)],
                stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            if (
                not wait_until(lambda: ready(address) or page.poll() is not None, READY_SECONDS)
                or page.poll() is not None
            ):
                print((Path(folder) / "page.log").read_text()[-2000:], file=sys.stderr)
                return 1
            synced, _ = mebibytes(page.pid)
            sizes = {path: read(address + path) for path in DOCUMENTS}
            over = threading.Event()

            def look() -> None:
                while not over.wait(ROUND_SECONDS):
                    for path in DOCUMENTS:
                        read(address + path)

            def report() -> None:
                for number in itertools.count():
                    if over.wait(1 / REPORTS_PER_SECOND):
                        return
                    name = f"node-{number % arguments.nodes:03d}"
                    cluster.api.patch(f"{GROUP}/gpunodes/{name}/status", {"status": acknowledged_status()})

            began, spent = time.monotonic(), cpu_seconds(page.pid)
            threads = [threading.Thread(target=look) for _ in range(arguments.readers)] + [
                threading.Thread(target=report)
            ]
            for thread in threads:
                thread.start()
            over.wait(arguments.seconds)
            over.set()
            for thread in threads:
                thread.join()
            now, most = mebibytes(page.pid)
            share = (cpu_seconds(page.pid) - spent) / (time.monotonic() - began)
        finally:
            page.terminate()
            page.wait(30)
    print(
        f"{arguments.nodes} nodes, {arguments.jobs} jobs: {synced:.0f} MiB resident once everything is listed, {now:.0f}"
        f" after {arguments.seconds:.0f} s with {arguments.readers} readers and {REPORTS_PER_SECOND} reports a second,"
        f" {most:.0f} at the most (limit {MOST_MEBIBYTES:g}); {100 * share:.0f} % of a core; documents of"
        f" {', '.join(f'{size / 1000:.1f} kB ({path})' for path, size in sizes.items())}"
    )
    return 0 if most <= MOST_MEBIBYTES else 1


if __name__ == "__main__":
    sys.exit(main())
