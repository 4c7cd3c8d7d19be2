"""Where the control plane's programs come from: found, downloaded, or built, in that order, each step at most once.

1. `KUBEBUILDER_ASSETS`, then (for what the cache lacks) PATH, where the version is a compatible one;
2. the cache, `$XDG_CACHE_HOME/flyball/<version>/bin`;
3. the official releases, verified against their published checksums;
4. a build from the module versions pinned in `testbed/controlplane_build/go.mod` and `testbed/realnode_build/go.mod`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from flyball_testbed.controlplane.components import API_SERVER, CONTROLLER_MANAGER, ETCD, KWOK, SCHEDULER
from flyball_testbed.controlplane.programs import build, download

KUBECTL = "kubectl"
PROGRAMS = (ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER, KUBECTL, KWOK)
KUBELET = "kubelet"
KUBE_PROXY = "kube-proxy"
CONTAINERD = "containerd"
CTR = "ctr"
# What a node with a real kubelet runs; the last three are called by containerd to give pods their network.
NODE_PROGRAMS = (KUBELET, KUBE_PROXY, CONTAINERD, "containerd-shim-runc-v2", CTR, "host-local", "loopback", "ptp")
KUBERNETES_PROGRAMS = frozenset({API_SERVER, CONTROLLER_MANAGER, SCHEDULER, KUBECTL, KUBELET, KUBE_PROXY})
ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
VERSION_TIMEOUT_SECONDS = 10

Report = Callable[[str], None]


class BinariesUnavailableError(Exception):
    """No step yielded the programs; the message has one line for each step that was tried."""


@dataclass(frozen=True)
class Binaries:
    """The path of each program."""

    paths: dict[str, Path]

    def __getitem__(self, program: str) -> Path:
        return self.paths[program]


def cache_directory() -> Path:
    """The folder of the cached programs of the pinned versions."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "flyball" / build.pinned_version(build.KUBERNETES_MODULE) / "bin"


def version_of(program: str, path: Path) -> tuple[int, ...] | None:
    """The version that a program reports, as numbers; None where it reports none."""
    arguments = ["version", "--client"] if program == KUBECTL else ["--version"]
    try:
        answer = subprocess.run(
            [str(path), *arguments], capture_output=True, text=True, timeout=VERSION_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", answer.stdout)
    return tuple(int(part) for part in found.groups()) if found is not None and answer.returncode == 0 else None


def incompatibility(program: str, path: Path) -> str | None:
    """Why a program found on the machine cannot be used; None where it can.

    A program must be of the pinned minor version (the API that the tests speak of, the form of kwok's stages and of
    containerd's configuration); etcd of that or a later one.
    """
    module = build.MODULE_OF_PROGRAM[program]
    wanted = tuple(int(part) for part in build.pinned_version(module).lstrip("v").split("."))
    found = version_of(program, path)
    if found is None:
        return f"{path} does not say its version"
    same = found[:2] == wanted[:2] if program != ETCD else found[0] == wanted[0] and found[:2] >= wanted[:2]
    if same:
        return None
    return f"{path} is {'.'.join(map(str, found))}, not {wanted[0]}.{wanted[1]}"


def _candidates(program: str) -> Iterator[Path]:
    assets = os.environ.get(ASSETS_VARIABLE)
    if assets:
        yield Path(assets) / program
    on_path = shutil.which(program)
    if on_path is not None:
        yield Path(on_path)


def _on_machine(missing: set[str], found: dict[str, Path]) -> str | None:
    """Take what the machine offers; the reasons for what was passed over."""
    reasons = []
    for program in sorted(missing):
        for candidate in _candidates(program):
            if not os.access(candidate, os.X_OK):
                continue
            reason = incompatibility(program, candidate)
            if reason is None:
                found[program] = candidate
                break
            reasons.append(reason)
    return "; ".join(reasons) or None


def _in_cache(missing: set[str], found: dict[str, Path]) -> None:
    for program in missing:
        cached = cache_directory() / program
        # A program enters the cache whole, by rename: its presence is its completeness.
        if os.access(cached, os.X_OK):
            found[program] = cached


def find_binaries(report: Report = print, programs: Collection[str] = PROGRAMS) -> Binaries:
    """The programs asked for, by default the control plane's; downloads or builds what is missing (minutes, once).

    `report` gets one line for each step that failed and for each program that is fetched or built. Raises
    BinariesUnavailableError with all those reasons.
    """
    found: dict[str, Path] = {}
    failures: list[str] = []

    def failed(step: str, reason: str) -> None:
        failures.append(f"{step}: {reason}")
        report(failures[-1])

    def missing() -> set[str]:
        return set(programs) - set(found)

    _in_cache(missing(), found)
    if os.environ.get(ASSETS_VARIABLE) or missing():
        # An explicit folder goes before the cache; PATH is asked only for what the cache lacks, because asking
        # costs a start of each program.
        asked = set(programs) if os.environ.get(ASSETS_VARIABLE) else missing()
        reason = _on_machine(asked, found)
        if reason is not None:
            failed("programs on this machine", reason)
    if not missing():
        return Binaries(found)

    directory = cache_directory()
    directory.mkdir(parents=True, exist_ok=True)
    with build.locked(directory.parent / "lock", report):
        _in_cache(missing(), found)  # another process may have filled it while we waited
        version = build.pinned_version(build.KUBERNETES_MODULE)
        wanted = missing() & KUBERNETES_PROGRAMS
        if wanted:
            try:
                download.fetch_kubernetes(sorted(wanted), version, directory, report)
            except download.DownloadError as error:
                failed("official release", str(error))
            _in_cache(missing(), found)
        if missing():
            try:
                build.build_programs(sorted(missing()), directory, report)
            except build.BuildError as error:
                failed("build from source", str(error))
            _in_cache(missing(), found)
    if missing():
        raise BinariesUnavailableError(
            f"no {', '.join(sorted(missing()))} for the devcluster:\n  " + "\n  ".join(failures)
        )
    return Binaries(found)
