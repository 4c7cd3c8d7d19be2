"""Putting measured figures into a page between markers, so that prose and figures stand together."""

from __future__ import annotations

import re
from pathlib import Path

from flyball_simulator.experiments.results import write_whole


def fill(path: Path, blocks: dict[str, str]) -> list[str]:
    """Replace what stands between `<!-- begin NAME -->` and `<!-- end NAME -->` for every block; the names without a place.

    Raises ValueError for a begin without its end.
    """
    text = path.read_text(encoding="utf-8")
    homeless = []
    for name, block in blocks.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        if begin not in text:
            homeless.append(name)
            continue
        pattern = re.compile(re.escape(begin) + r".*?" + re.escape(end), re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"{path}: {begin} has no {end}")
        text = pattern.sub(lambda _, block=block, begin=begin, end=end: f"{begin}\n{block}\n{end}", text)  # type: ignore[misc]
    write_whole(path, text)
    return homeless
