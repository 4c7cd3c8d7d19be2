"""Runs the tests that stand near the power decisions against every mutant of them, and names the mutants that survive.

    python -m tests.mutants [--only NAME ...] [--jobs N] [--list]

The run works on a temporary copy of the sources, so that they may be edited meanwhile, and any number of runs can go on
beside each other. A mutant is killed where a test fails, or takes too long. Survivors are compared with `accepted.py`; the
exit status is 1 where there is one that is not listed, or one that is listed and does not survive any more, and 2 where the
tests fail without any mutant.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.mutants.accepted import ACCEPTED
from tests.mutants.mutate import Mutant
from tests.mutants.run import ROOT, TARGETS, TestsFailError, Verdict, all_mutants, try_all

SOURCES = ("crds", "kube", "planner", "operator", "node_agent", "simulated_gpu")
PROGRESS_EVERY = 50
COPIED = (*SOURCES, "tests", "docs", "pyproject.toml")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mutants; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="NAME", help="the modules whose name contains one of these"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--list", action="store_true", help="name the mutants, and try none")
    parser.add_argument("--in-place", action="store_true", help="run on these sources, without a copy")
    options = parser.parse_args(arguments)
    if not options.in_place and not options.list:
        return _in_a_copy(sys.argv[1:] if arguments is None else arguments)
    chosen = [target for target in TARGETS if any(name in target.module for name in options.only)]
    mutants = {mutant.key: mutant for target in chosen for mutant in all_mutants(target)}
    if options.list:
        print("\n".join(mutants))
        return 0
    started = time.monotonic()
    survivors: set[str] = set()

    def report(verdicts: Iterator[tuple[Mutant, Verdict]]) -> None:
        for number, (mutant, verdict) in enumerate(verdicts, start=1):
            if number % PROGRESS_EVERY == 0:
                seconds = time.monotonic() - started
                print(f"{number} mutants, {len(survivors)} survivors, {seconds:.0f} s", file=sys.stderr, flush=True)
            if verdict is not Verdict.KILLED:
                survivors.add(mutant.key)
                said = "accepted" if mutant.key in ACCEPTED else verdict.value.upper()
                print(f"{said}  line {mutant.line}  {mutant.key}", flush=True)

    try:
        try_all(chosen, options.jobs, report)
    except TestsFailError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    new = [key for key in survivors if key not in ACCEPTED]
    gone = [key for key in ACCEPTED if key in mutants and key not in survivors]
    unknown = [] if options.only != [""] else [key for key in ACCEPTED if key not in mutants]
    for key in gone:
        print(f"KILLED BY NOW, take it from the list: {key}")
    for key in unknown:
        print(f"NO SUCH MUTANT, take it from the list: {key}")
    killed = len(mutants) - len(survivors)
    print(
        f"{killed} of {len(mutants)} mutants killed ({100 * killed / max(1, len(mutants)):.1f} %), "
        f"{len(survivors) - len(new)} survivors accepted, {len(new)} not, in {time.monotonic() - started:.0f} s"
    )
    return 1 if new or gone or unknown else 0


def _in_a_copy(arguments: Sequence[str]) -> int:
    """The same run on a copy of the sources as they are now."""
    with tempfile.TemporaryDirectory(prefix="flyball-mutants-") as folder:
        for name in COPIED:
            source, copy = ROOT / name, Path(folder, name)
            if source.is_dir():
                shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", "node_modules", ".*_cache"))
            else:
                shutil.copy(source, copy)
        path = os.pathsep.join(str(Path(folder, name)) for name in SOURCES)
        command = [sys.executable, "-m", "tests.mutants", "--in-place", *arguments]
        return subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
