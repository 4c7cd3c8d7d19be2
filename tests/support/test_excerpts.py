"""The excerpts in tests/data are what is made of their sources, small, and each with its origin noted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.excerpts import EXCERPTS, FITS, MAKERS, excerpt, read_text

MAXIMUM_BYTES = 100_000


@pytest.mark.whole_data
@pytest.mark.parametrize("name", [*MAKERS, FITS])
def test_an_excerpt_is_made_of_its_source(whole_data: Path, name: str) -> None:
    assert read_text(EXCERPTS / name) == excerpt(whole_data, name)


def test_every_file_is_an_excerpt_a_small_one_with_its_origin_noted() -> None:
    files = {str(path.relative_to(EXCERPTS)): path for path in EXCERPTS.rglob("*.*") if path.is_file()}
    readme = files.pop("README.md").read_text(encoding="utf-8")
    assert set(files) == {*MAKERS, FITS}
    assert all(path.stat().st_size <= MAXIMUM_BYTES for path in files.values())
    for name in files:
        assert any(f"`{folder}/" in readme for folder in Path(name).parents), name
