"""What has been judged of which code, in a file to which every part is added at once: a run that was ended goes on there.

One JSON line a part. Parts of other code stay in the file and are counted by themselves: what held of it says nothing of
the code as it is.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[1]
FIRST_BYTES = b'{"code":"'  # of each line


class Part(msgspec.Struct, frozen=True):
    """Some schedules of one code and one choice of groups of faults, and what they came to.

    `seeds` are (first, how many) of each run of seeds, `windows` the seconds of each by its cause, `violations` seeds and
    what was not true.
    """

    code: str
    commit: str
    groups: str
    seeds: tuple[tuple[int, int], ...]
    judged: int
    processor_seconds: float
    faults: dict[str, int]
    windows: dict[str, list[float]]
    violations: list[tuple[int, str]]

    @property
    def schedules(self) -> int:
        return sum(count for _, count in self.seeds)


class Records:
    """The parts in a file. Raises ValueError for one that is not such a file, OSError for one that cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parts: list[Part] = []
        if not path.exists():
            return
        *lines, torn = path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, 1):
            try:
                self._parts.append(msgspec.json.decode(line, type=Part))
            except msgspec.MsgspecError as error:
                raise ValueError(f"{path}, line {number}: not a part of a run of schedules: {error}") from error
        if torn and not torn.startswith(FIRST_BYTES[: len(torn)]):
            raise ValueError(f"{path}: its last line is not a part of a run of schedules")
        if torn:  # by the end of whoever wrote it: those seeds are judged again
            path.write_bytes(b"".join(line + b"\n" for line in lines))

    def add(self, part: Part) -> None:
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(part) + b"\n")
        self._parts.append(part)

    def of(self, code: str, groups: str) -> list[Part]:
        return [part for part in self._parts if (part.code, part.groups) == (code, groups)]

    def judged(self, code: str, groups: str) -> set[int]:
        """The seeds of which the schedules of these groups have been judged on this code."""
        return {
            seed
            for part in self.of(code, groups)
            for first, count in part.seeds
            for seed in range(first, first + count)
        }

    def by_code(self) -> dict[str, tuple[str, int, int]]:
        """The commit, how many schedules and how many violations there were of each code, in the order of their runs."""
        found: dict[str, tuple[str, int, int]] = {}
        for part in self._parts:
            commit, schedules, violations = found.get(part.code, (part.commit, 0, 0))
            found[part.code] = commit, schedules + part.schedules, violations + len(part.violations)
        return found


def runs_of(seeds: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Rising seeds as (first, how many) of each run without a gap."""
    runs: list[tuple[int, int]] = []
    for seed in seeds:
        if runs and seed == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((seed, 1))
    return tuple(runs)


def code_that_runs() -> str:
    """Twelve digits that change with any file of this checkout that this process has loaded."""
    digest = hashlib.sha256()
    for path in sorted(set(_loaded())):
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _loaded() -> Iterator[Path]:
    for module in list(sys.modules.values()):
        path = Path(getattr(module, "__file__", None) or "/")
        if path.suffix != ".py" or not path.is_relative_to(ROOT):
            continue
        if "site-packages" not in path.parts and not path.is_relative_to(ROOT / "benchmarks"):
            yield path


def commit_of_checkout() -> str:
    """The commit that is checked out, with "+" where files differ from it; empty where git does not say."""
    try:
        described = subprocess.run(
            ["git", "-C", str(ROOT), "describe", "--always", "--exclude=*", "--abbrev=7", "--dirty=+"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return described.stdout.strip()
