"""Other people's controllers, for `make test-integrations`: built once from `testbed/integrations_build/go.mod`."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from flyball_testbed.controlplane.programs import build
from flyball_testbed.controlplane.programs.binaries import Binaries, BinariesUnavailableError, Report, cache_directory

PROMETHEUS_OPERATOR = "prometheus-operator"


def integrations_directory() -> Path:
    """The folder of the cached controllers of the pinned versions."""
    pins = (build.INTEGRATIONS_DIRECTORY / "go.mod").read_bytes()
    return cache_directory().parents[1] / f"integrations-{hashlib.sha256(pins).hexdigest()[:12]}" / "bin"


def find_integrations(report: Report = print) -> Binaries:
    """The controllers; builds what is missing (ten minutes, once). Raises BinariesUnavailableError."""
    directory = integrations_directory()
    directory.mkdir(parents=True, exist_ok=True)
    with build.locked(directory.parent / "lock", report):
        missing = [name for name in build.PACKAGE_OF_INTEGRATION if not os.access(directory / name, os.X_OK)]
        try:
            if missing:
                build.build_programs(missing, directory, report)
        except build.BuildError as error:
            raise BinariesUnavailableError(f"no {', '.join(missing)}: {error}") from error
    return Binaries({name: directory / name for name in build.PACKAGE_OF_INTEGRATION})


def prometheus_operator_definitions(report: Report = print) -> list[Path]:
    """The files of the prometheus-operator's own CRDs. Raises BuildError where its sources cannot be had."""
    go = build.find_go(integrations_directory().parent / "tools", report)
    source = build.module_source(build.PROMETHEUS_OPERATOR_MODULE, go)
    return sorted((source / "example/prometheus-operator-crd").glob("*.yaml"))


if __name__ == "__main__":
    print("\n".join(str(path) for path in find_integrations().paths.values()))
