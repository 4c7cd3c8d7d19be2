"""What the tests build before they begin, from an empty cache: seconds and processor time of each, one after the other.

    python benchmarks/builds.py [--only "control plane"] [--only images]     # half an hour of two cores; nice it
    python benchmarks/builds.py --together                                   # as `make programs` and `.ci/run` do it

Programs are built into a folder of their own with Go's caches in it, so that sources are fetched, too. The sum, with a run
of the tests where everything is built (`--suite-seconds`), is what `.ci/run` takes in a fresh clone without any cache.
Ends with 1 where that is more than MOST_SECONDS. Processor time over the number of cores is what a build takes at the least
on a machine with nothing else to do; a busy one shows more seconds.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from flyball_testbed.controlplane.install import REPOSITORY

MOST_SECONDS = 75 * 60.0
PROGRAMS = [sys.executable, "-m", "flyball_testbed.builds"]
ENVIRONMENT, TOGETHER = "virtual environment", "all beside each other"
# In the order in which a run of everything comes to them.
BUILDS = {
    ENVIRONMENT: ["make", "--silent", "venv", "VENV={folder}/venv"],
    "control plane": [*PROGRAMS, "control-plane"],
    "real nodes": [*PROGRAMS, "real-nodes"],
    "chart tools": [*PROGRAMS, "chart-tools"],
    "Prometheus": [*PROGRAMS, "prometheus"],
    "images": [*PROGRAMS, "images"],
}


@dataclass(frozen=True)
class Cost:
    """What one build took."""

    seconds: float
    processor_seconds: float


def measured(name: str, folder: Path) -> Cost:
    """Build into `folder`. Raises CalledProcessError where it fails."""
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(folder / "cache"),
        "GOMODCACHE": str(folder / "modules"),
        "GOFLAGS": "-modcacherw",  # for it to be removed
        "PIP_NO_CACHE_DIR": "1",
    }
    command = [word.format(folder=folder) for word in (PROGRAMS if name == TOGETHER else BUILDS[name])]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, env=environment, cwd=REPOSITORY, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(time.monotonic() - began, spent)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(BUILDS), help="only this one; may be repeated")
    parser.add_argument("--together", action="store_true", help="the environment, then all programs and images at once")
    parser.add_argument("--suite-seconds", type=float, default=0.0, help="what `.ci/run` takes with everything built")
    parser.add_argument("--folder", type=Path, help="build into this folder, and leave it; default: a temporary one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flyball-builds-") as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        costs = {}
        for name in (ENVIRONMENT, TOGETHER) if arguments.together else arguments.only or BUILDS:
            print(f"--- {name}", flush=True)
            costs[name] = measured(name, folder)
            found = costs[name]
            print(f"--- {name}: {found.seconds:.0f} s, {found.processor_seconds:.0f} s of processors", flush=True)
    seconds = sum(found.seconds for found in costs.values())
    spent = sum(found.processor_seconds for found in costs.values())
    whole = seconds + arguments.suite_seconds
    cores = os.cpu_count() or 1
    print(
        f"{', '.join(f'{name} {found.seconds:.0f} s ({found.processor_seconds:.0f})' for name, found in costs.items())}"
        f"\ntogether {seconds:.0f} s ({spent:.0f} of processors, of which {cores} are here); with"
        f" {arguments.suite_seconds:.0f} s of tests {whole / 60:.0f} minutes (limit {MOST_SECONDS / 60:g})"
    )
    return 0 if whole <= MOST_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
