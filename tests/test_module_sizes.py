"""No module is longer than what can be read in one sitting, as docs/development.md has it under Style."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEVELOPMENT = (ROOT / "docs/development.md").read_text(encoding="utf-8")


def test_no_module_is_longer_than_the_style_has_it() -> None:
    found = re.search(r"Modules of one idea, \d+ to (\d+) lines", DEVELOPMENT)
    assert found is not None
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name not in ("tests", "docs", "out", "build")]
    modules = [path for folder in folders if folder.name[0] != "." for path in folder.rglob("*.py")]
    assert len(modules) > 500
    lines = {path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines()) for path in modules}
    assert {name: count for name, count in lines.items() if count > int(found[1])} == {}
