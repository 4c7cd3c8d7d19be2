"""Everything that the tests build, beforehand: fetched or built where it is missing, two builds at a time.

    python -m flyball_testbed.builds [NAME...]       # those named, one after the other; by default all

Each line says of which build it is. One build alone leaves cores idle while it fetches its sources and while it links.
Real nodes and images are not to be had everywhere: where they are not, that is said, and the tests that need them are
skipped. Everything else has to be there.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from flyball_testbed.controlplane.programs.binaries import (
    NODE_PROGRAMS,
    PROGRAMS,
    BinariesUnavailableError,
    Report,
    find_binaries,
)
from flyball_testbed.controlplane.programs.chart_tools import find_chart_tools
from flyball_testbed.controlplane.programs.monitoring_tools import find_monitoring_tools
from flyball_testbed.images.build import ImageBuildError, ImagesUnavailableError, find_images
from flyball_testbed.realnode import requirements


class UnavailableError(Exception):
    """It is not to be had here, and why; tests that need it are skipped."""


def _control_plane(report: Report) -> None:
    find_binaries(report)


def _real_nodes(report: Report) -> None:
    obstacles = requirements.obstacles()
    if obstacles:
        raise UnavailableError("; ".join(obstacles))
    try:
        find_binaries(report, (*PROGRAMS, *NODE_PROGRAMS))
    except BinariesUnavailableError as error:
        raise UnavailableError(str(error)) from error


def _chart_tools(report: Report) -> None:
    find_chart_tools(report)


def _prometheus(report: Report) -> None:
    find_monitoring_tools(report)


def _images(report: Report) -> None:
    try:
        find_images(report)
    except (ImagesUnavailableError, ImageBuildError) as error:
        raise UnavailableError(str(error)) from error


BUILDS: dict[str, Callable[[Report], None]] = {
    "control-plane": _control_plane,
    "real-nodes": _real_nodes,
    "chart-tools": _chart_tools,
    "prometheus": _prometheus,
    "images": _images,
}
# What goes on beside each other. Real nodes stand behind the control plane, whose sources and lock they share.
SIDE_BY_SIDE = (("control-plane", "real-nodes"), ("chart-tools", "prometheus", "images"))
STOP_SECONDS = 30.0


def build(names: Sequence[str], report: Report) -> bool:
    """Have these, one after the other; whether all are there that have to be.

    `report` gets a line for each that is fetched or built, and for each that cannot be had.
    """
    well = True
    for name in names:
        started = time.monotonic()
        reported = False

        def say(line: str, name: str = name) -> None:
            nonlocal reported
            reported = True
            report(f"{name}: {line}")

        try:
            BUILDS[name](say)
        except UnavailableError as error:
            say(f"left out: {error}")
        except BinariesUnavailableError as error:
            say(f"failed: {error}")
            well = False
        else:
            if reported:
                say(f"ready after {time.monotonic() - started:.0f} s")
    return well


def build_side_by_side(chains: Sequence[Sequence[str]]) -> bool:
    """Have each chain built by a process of its own; whether all went well. Interrupted, it ends them first."""
    command = [sys.executable, "-m", "flyball_testbed.builds"]
    with contextlib.ExitStack() as running:
        started = [running.enter_context(_ending([*command, *chain])) for chain in chains]
        statuses = [process.wait() for process in started]
        return not any(statuses)


@contextlib.contextmanager
def _ending(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is asked to end where the body ends before it."""
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(STOP_SECONDS)


def main() -> int:
    """Run the command; its exit status, 1 where something is missing that has to be there."""
    parser = argparse.ArgumentParser(
        prog="python -m flyball_testbed.builds",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BUILDS)}")
    names = parser.parse_args().names
    unknown = sorted(set(names) - set(BUILDS))
    if unknown:
        parser.error(f"{', '.join(unknown)}: none of {', '.join(BUILDS)}")
    # As an exception a request to end takes what was started along.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    if not names:
        return 0 if build_side_by_side(SIDE_BY_SIDE) else 1
    return 0 if build(names, _print_whole) else 1


def _print_whole(line: str) -> None:
    """Print a line with its end in one write: print() itself takes two where Python does not buffer, and another build
    that writes to the same place comes between them."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
