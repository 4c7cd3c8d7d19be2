"""How large the images are, how fast their command answers, and how soon an operator from its image is ready.

    python benchmarks/images.py [--nodes 4]

Builds the images of this checkout where they are not built yet (`make images`; root, buildah, mmdebstrap), unpacks them,
and runs what is in them as their user, under its own root. Prints bytes unpacked, the CPU seconds of `flyball --version`
(the least of ten), and the seconds from the start of the operator's process to the first /readyz that says yes, on a real
control plane (the least of three). Exits with 1 where a limit is passed.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from flyball_testbed.controlplane.cluster import DevCluster
from flyball_testbed.images.archive import read_image, unpack, unpacked_bytes
from flyball_testbed.images.build import IMAGES, find_images

# docs/install.md promises them.
LIMIT_MEGABYTES = {"operator": 330, "agent": 130}
VERSION_LIMIT_SECONDS = 0.3
READY_LIMIT_SECONDS = 3.0
USER = 65532
FLYBALL = "/opt/flyball/bin/flyball"
ENVIRONMENT = {"PATH": "/opt/flyball/bin:/usr/bin:/usr/sbin:/sbin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
PROBE_PORT = 18080


def as_user(root: Path, *arguments: str) -> list[str]:
    return ["chroot", f"--userspec={USER}:{USER}", str(root), FLYBALL, *arguments]


def cpu_seconds_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def version_seconds(root: Path) -> float:
    """CPU seconds, the least of ten: what the command takes, and not what else the machine does."""
    least = float("inf")
    for _ in range(10):
        before = cpu_seconds_of_children()
        subprocess.run(as_user(root, "--version"), check=True, capture_output=True, env=ENVIRONMENT)
        least = min(least, cpu_seconds_of_children() - before)
    return least


def ready_seconds(root: Path, cluster: DevCluster) -> float:
    """From the start of the process to the first /readyz that says yes."""
    kubeconfig = root / "kubeconfig"
    shutil.copy(cluster.operator_kubeconfig(), kubeconfig)
    kubeconfig.chmod(0o444)
    arguments = ["--kubeconfig=/kubeconfig", "--metrics-port=0", f"--probe-port={PROBE_PORT}"]
    started = time.monotonic()
    with subprocess.Popen(
        as_user(root, "operator", "run", *arguments), env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as operator:
        try:
            while time.monotonic() - started < 60:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{PROBE_PORT}/readyz", timeout=1) as answer:
                        if answer.status == 200:
                            return time.monotonic() - started
                except (urllib.error.URLError, OSError):
                    time.sleep(0.02)
                if operator.poll() is not None:
                    assert operator.stderr is not None
                    raise RuntimeError(operator.stderr.read().decode()[-2000:])
            raise RuntimeError("the operator was not ready within a minute")
        finally:
            operator.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    arguments = parser.parse_args()
    failed = False
    archives = find_images()
    with tempfile.TemporaryDirectory() as scratch:
        for name in IMAGES:
            root = Path(scratch) / name
            root.mkdir()
            unpack(read_image(archives[name]), root)
            root.chmod(0o755)
            megabytes, seconds = unpacked_bytes(root) / 1e6, version_seconds(root)
            archived = archives[name].stat().st_size / 1e6
            print(
                f"{name}: {megabytes:.0f} MB unpacked (limit {LIMIT_MEGABYTES[name]}), {archived:.0f} MB as layers,"
                f" `flyball --version` {seconds:.2f} CPU seconds (limit {VERSION_LIMIT_SECONDS:g} s)"
            )
            failed |= megabytes > LIMIT_MEGABYTES[name] or seconds > VERSION_LIMIT_SECONDS
        Path(scratch).chmod(0o755)
        with DevCluster.start(arguments.nodes) as cluster:
            seconds = min(ready_seconds(Path(scratch) / "operator", cluster) for _ in range(3))
        print(f"operator ready after {seconds:.1f} s (limit {READY_LIMIT_SECONDS:g} s; {arguments.nodes} nodes)")
        failed |= seconds > READY_LIMIT_SECONDS
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
