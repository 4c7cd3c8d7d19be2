"""Other people's programs, for `make test-integrations` and pictures: each built once from its pins.

They stand in `testbed/integrations_build/<name>/go.mod`, a module each: what one needs of a library another may not take,
and a new version of one builds only that.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from pathlib import Path

from flyball_testbed.controlplane.programs import build
from flyball_testbed.controlplane.programs.binaries import BinariesUnavailableError, Report, cache_directory

PROMETHEUS_OPERATOR = "prometheus-operator"
JOBSET = "jobset"
COSIGN = "cosign"
KUBE_SCORE = "kube-score"
VICTORIA_METRICS = "victoria-metrics"
KUBE_ROUTER = "kube-router"
INTEGRATIONS = tuple(build.PACKAGE_OF_INTEGRATION)


def integration_directory(program: str) -> Path:
    """The folder of a cached program of the pinned version."""
    pins = (build.DIRECTORY_OF_MODULE[build.MODULE_OF_PROGRAM[program]] / "go.mod").read_bytes()
    return cache_directory().parents[1] / f"integrations-{hashlib.sha256(pins).hexdigest()[:12]}" / "bin"


def find_integration(program: str, report: Report = print) -> Path:
    """One of INTEGRATIONS; built where it is missing (two to twelve minutes, once). Raises BinariesUnavailableError."""
    directory = integration_directory(program)
    directory.mkdir(parents=True, exist_ok=True)
    with build.locked(directory.parent / "lock", report):
        try:
            if not os.access(directory / program, os.X_OK):
                build.build_programs([program], directory, report)
        except build.BuildError as error:
            raise BinariesUnavailableError(f"no {program}: {error}") from error
    return directory / program


def present_integration(program: str) -> Path | None:
    """One of INTEGRATIONS where it has been built already."""
    path = integration_directory(program) / program
    return path if os.access(path, os.X_OK) else None


def integration_source(program: str, report: Report = print) -> Path:
    """The folder of a program's own sources, with the definitions that it comes with. Raises BuildError."""
    go = build.find_go(build.tools_directory(integration_directory(program)), report)
    return build.module_source(build.MODULE_OF_PROGRAM[program], go)


def main() -> int:
    """Build those named, or all; one that cannot be built is said, and the others are built all the same."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"of {', '.join(INTEGRATIONS)}; default: all")
    wanted = parser.parse_args().programs or INTEGRATIONS
    unknown = sorted(set(wanted) - set(INTEGRATIONS))
    if unknown:
        parser.error(f"{', '.join(unknown)}: none of {', '.join(INTEGRATIONS)}")
    status = 0
    for program in wanted:
        try:
            print(find_integration(program, lambda line: print(line, flush=True)))
        except BinariesUnavailableError as error:
            print(error, file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
