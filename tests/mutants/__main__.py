"""Runs the tests that stand near the power decisions against every mutant of them, and names the mutants that survive.

    python -m tests.mutants [--only NAME ...] [--jobs N] [--list] [--kept FILE [--seconds N]]

The run works on a temporary copy of the sources, so that they may be edited meanwhile, and any number of runs can go on
beside each other. A mutant is killed where a test fails, or takes too long. Survivors are compared with `accepted.py`; the
exit status is 1 where there is one that is not listed, or one that is listed and does not survive any more, 2 where the
tests fail without any mutant, and 3 where `--seconds` were over before all were tried. What is in FILE of the same sources
is not tried again, so that a run can be made in pieces.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
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
from tests.mutants.run import ROOT, TARGETS, RecordedFile, TestsFailError, Verdict, all_mutants, try_all

SOURCES = ("crds", "kube", "planner", "operator", "node_agent", "simulated_gpu")
PROGRESS_EVERY = 50
COPIED = (*SOURCES, "tests", "docs", "pyproject.toml")
NOT_ALL_TRIED = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mutants; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", nargs="+", action="extend", metavar="NAME", help="the modules whose name contains one of these"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--list", action="store_true", help="name the mutants, and try none")
    parser.add_argument("--kept", type=Path, metavar="FILE", help="where verdicts are kept, for a run in pieces")
    parser.add_argument("--seconds", type=float, default=math.inf, metavar="N", help="begin no mutant after so long")
    parser.add_argument("--in-place", action="store_true", help="run on these sources, without a copy")
    options = parser.parse_args(arguments)
    if not options.in_place and not options.list:
        kept = [] if options.kept is None else ["--kept", str(options.kept.resolve())]
        return _in_a_copy([*(sys.argv[1:] if arguments is None else arguments), *kept])
    chosen = [target for target in TARGETS if any(name in target.module for name in (options.only or [""]))]
    mutants = {mutant.key: mutant for target in chosen for mutant in all_mutants(target)}
    if options.list:
        print("\n".join(mutants))
        return 0
    started = time.monotonic()
    sources = "" if options.kept is None else _digest()
    kept_verdicts = None if options.kept is None else KeptVerdicts(options.kept, sources)
    verdicts = {} if kept_verdicts is None else {key: of for key, of in kept_verdicts.read() if key in mutants}

    def report(found: Iterator[tuple[Mutant, Verdict]]) -> None:
        for mutant, verdict in found:
            verdicts[mutant.key] = verdict
            if kept_verdicts is not None:
                kept_verdicts.add(mutant.key, verdict)
            if verdict is not Verdict.KILLED:
                _say_survivor(mutant, verdict)
            seconds = time.monotonic() - started
            if len(verdicts) % PROGRESS_EVERY == 0:
                survivors = sum(verdict is not Verdict.KILLED for verdict in verdicts.values())
                print(f"{len(verdicts)} mutants, {survivors} survivors, {seconds:.0f} s", file=sys.stderr, flush=True)
            if seconds > options.seconds:
                return

    for key, verdict in verdicts.items():
        if verdict is not Verdict.KILLED:
            _say_survivor(mutants[key], verdict)
    if len(verdicts) < len(mutants):
        recorded = None
        if options.kept is not None:
            of = " ".join([sources, *(target.module for target in chosen)])
            recorded = RecordedFile(options.kept.with_suffix(".recorded"), of)
        try:
            try_all(chosen, options.jobs, report, frozenset(verdicts), recorded)
        except TestsFailError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    if len(verdicts) < len(mutants):
        print(
            f"{len(verdicts)} of {len(mutants)} mutants tried in {time.monotonic() - started:.0f} s; go on with --kept"
        )
        return NOT_ALL_TRIED
    survivors = {key for key, verdict in verdicts.items() if verdict is not Verdict.KILLED}
    new = [key for key in survivors if key not in ACCEPTED]
    gone = [key for key in ACCEPTED if key in mutants and key not in survivors]
    unknown = [] if options.only else [key for key in ACCEPTED if key not in mutants]
    for key in gone:
        print(f"KILLED BY NOW, take it from the list: {key}")
    for key in unknown:
        print(f"NO SUCH MUTANT, take it from the list: {key}")
    killed = len(mutants) - len(survivors)
    print(
        f"{killed} of {len(mutants)} mutants killed ({100 * killed / max(1, len(mutants)):.1f} %), "
        f"{len(survivors) - len(new)} survivors accepted, {len(new)} not, in {time.monotonic() - started:.0f} s, "
        f"{_processor_seconds():.0f} of processors"
    )
    return 1 if new or gone or unknown else 0


def _say_survivor(mutant: Mutant, verdict: Verdict) -> None:
    said = "accepted" if mutant.key in ACCEPTED else verdict.value.upper()
    print(f"{said}  line {mutant.line}  {mutant.key}", flush=True)


def _processor_seconds() -> float:
    """Of this process and all that have ended of those that it started."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class KeptVerdicts:
    """Verdicts in a file, a line each, with the sources that they are of: those of other sources are passed over."""

    def __init__(self, path: Path, sources: str) -> None:
        self._path = path
        self._sources = sources

    def read(self) -> Iterator[tuple[str, Verdict]]:
        """The mutants of these sources that have been tried."""
        for line in self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []:
            with contextlib.suppress(json.JSONDecodeError):  # one that was written in half
                sources, key, verdict = json.loads(line)
                if sources == self._sources:
                    yield key, Verdict(verdict)

    def add(self, key: str, verdict: Verdict) -> None:
        """Keep what became of a mutant."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"\n{json.dumps([self._sources, key, verdict.value])}")


def _digest() -> str:
    """Of every source that the verdicts could depend on."""
    digest = hashlib.sha256()
    for path in sorted(path for name in COPIED for path in Path(ROOT, name).rglob("*.*")):
        if path.is_file() and path.suffix in (".py", ".yaml", ".csv", ".json"):
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _in_a_copy(arguments: Sequence[str]) -> int:
    """The same run on a copy of the sources as they are now."""
    with tempfile.TemporaryDirectory(prefix="flyball-mutants-") as folder:
        for name in COPIED:
            source, copy = ROOT / name, Path(folder, name)
            if source.is_dir():
                shutil.copytree(source, copy, ignore=shutil.ignore_patterns("node_modules", ".*_cache"))
            else:
                shutil.copy(source, copy)
        path = os.pathsep.join(str(Path(folder, name)) for name in SOURCES)
        command = [sys.executable, "-m", "tests.mutants", "--in-place", *arguments]
        return subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
