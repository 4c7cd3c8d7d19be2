"""Where Prometheus and promtool come from: found, fetched, or built, in that order, each step at most once.

1. The cache, then PATH, where both are there and not too old;
2. Debian's package `prometheus`, fetched and unpacked into the cache in three seconds: nothing is installed or started;
3. a build from the pins in `testbed/monitoring_build/go.mod` (six minutes on two cores).

Debian's Prometheus takes fixed targets and knows no discovery in Kubernetes. What is tested with either are rules and
queries, which people run on Prometheus servers of many ages: an old one is no worse a judge than a new one.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from flyball_testbed.controlplane.programs import build
from flyball_testbed.controlplane.programs.binaries import Binaries, BinariesUnavailableError, Report, cache_directory

PROMETHEUS = "prometheus"
PROMTOOL = "promtool"
MONITORING_TOOLS = tuple(build.PACKAGE_OF_MONITORING_TOOL)
OLDEST = (2, 42)
DEBIAN_PACKAGE = "prometheus"
FETCH_SECONDS = 120.0
VERSION_SECONDS = 10.0


def monitoring_tools_directory() -> Path:
    """The folder of the cached tools of the pinned version."""
    pins = (build.MONITORING_DIRECTORY / "go.mod").read_bytes()
    return cache_directory().parents[1] / f"monitoring-{hashlib.sha256(pins).hexdigest()[:12]}" / "bin"


def find_monitoring_tools(report: Report = print) -> Binaries:
    """Prometheus and promtool; fetches or builds them where they are missing. Raises BinariesUnavailableError.

    `report` gets one line for what is fetched or built, and for each step that failed.
    """
    found = present_monitoring_tools()
    if found is not None:
        return found
    directory = monitoring_tools_directory()
    directory.mkdir(parents=True, exist_ok=True)
    with build.locked(directory.parent / "lock", report):
        found = _in(directory)
        if found is not None:
            return found  # another process has put them there while we waited
        why_not = _fetch_debian(directory, report)
        if why_not:
            report(f"Debian's package {DEBIAN_PACKAGE}: {why_not}")
            try:
                build.build_programs(MONITORING_TOOLS, directory, report)
            except build.BuildError as error:
                raise BinariesUnavailableError(f"no Prometheus: Debian's package: {why_not}; {error}") from error
    return Binaries({tool: directory / tool for tool in MONITORING_TOOLS})


def present_monitoring_tools() -> Binaries | None:
    """Prometheus and promtool where they are there already: nothing is fetched or built."""
    return _in(monitoring_tools_directory()) or _on_path()


def _in(directory: Path) -> Binaries | None:
    found = {tool: directory / tool for tool in MONITORING_TOOLS}
    return Binaries(found) if all(os.access(path, os.X_OK) for path in found.values()) else None


def _on_path() -> Binaries | None:
    found = {tool: shutil.which(tool) for tool in MONITORING_TOOLS}
    paths = {tool: Path(path) for tool, path in found.items() if path is not None}
    if len(paths) < len(MONITORING_TOOLS) or any(_version(path) < OLDEST for path in paths.values()):
        return None
    return Binaries(paths)


def _version(program: Path) -> tuple[int, int]:
    """The version that a program says it has; (0, 0) where it says none."""
    try:
        answer = subprocess.run(
            [str(program), "--version"], capture_output=True, text=True, timeout=VERSION_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0, 0
    found = re.search(r"version (\d+)\.(\d+)", answer.stdout + answer.stderr)
    return (0, 0) if found is None else (int(found.group(1)), int(found.group(2)))


def _fetch_debian(directory: Path, report: Report) -> str:
    """Put the programs of Debian's package into `directory`; why that cannot be done, or nothing."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return "this machine has no apt-get"
    report(f"fetching Debian's package {DEBIAN_PACKAGE}, for its programs alone")
    with tempfile.TemporaryDirectory(prefix=build.SCRATCH_PREFIX, dir=directory) as scratch:
        try:
            subprocess.run(
                ["apt-get", "--quiet", "--quiet", "download", DEBIAN_PACKAGE],
                cwd=scratch, capture_output=True, text=True, timeout=FETCH_SECONDS, check=True,
            )  # fmt: skip
            (archive,) = Path(scratch).glob("*.deb")
            subprocess.run(
                ["dpkg-deb", "--extract", str(archive), scratch],
                capture_output=True, text=True, timeout=FETCH_SECONDS, check=True,
            )  # fmt: skip
        except subprocess.CalledProcessError as error:
            return " ".join(error.stderr.split())[-300:] or f"{error.cmd[0]} ended with status {error.returncode}"
        except (subprocess.TimeoutExpired, OSError, ValueError) as error:
            return str(error)
        unpacked = _in(Path(scratch) / "usr/bin")
        if unpacked is None:
            return f"it has no {' and '.join(MONITORING_TOOLS)}"
        if any(_version(path) < OLDEST for path in unpacked.paths.values()):
            return f"it is older than {'.'.join(map(str, OLDEST))}, or does not run here"
        for tool, path in unpacked.paths.items():
            os.replace(path, directory / tool)
    return ""
