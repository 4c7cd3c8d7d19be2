"""The documentation as a site: every page is in it, its links lead somewhere, and nothing comes from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from flyball_api.manifests import manifests

from docs.site.hooks import in_python_markdown, named_outside, named_pages, with_the_rest
from docs.site.reference import pages

ROOT = Path(__file__).parents[1]


class _Loader(yaml.SafeLoader):
    """mkdocs.yml names a function for the anchors; which, does not matter here."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
CONFIGURATION: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text(), _Loader)  # noqa: S506 - a SafeLoader


def test_a_page_that_nobody_has_put_into_the_navigation_is_there_all_the_same() -> None:
    navigation = [{"Start": [{"One": "one.md"}]}, {"Reference": ["two.md"]}]
    assert named_pages(navigation) == ["one.md", "two.md"]
    assert with_the_rest(navigation, ["two.md", "one.md"]) == navigation
    assert with_the_rest(navigation, ["one.md", "b.md", "a.md"])[-1] == {"More": ["a.md", "b.md"]}


@pytest.mark.slow
def test_every_page_of_the_navigation_is_written_or_made() -> None:
    named = named_pages(CONFIGURATION["nav"])
    assert len(named) == len(set(named)) > 20
    assert [name for name in named if not (ROOT / "docs" / name).exists() and name not in pages()] == []


def test_the_reference_has_every_field_and_every_command() -> None:
    made = pages()
    for crd in manifests():
        assert f"## {crd['spec']['names']['kind']}\n" in made["reference/api.md"]
    for field in ("gpus.min", "watts", "devices[].limits.minMilliwatts", "meter.prometheus.query"):
        assert f"| `{field}` |" in made["reference/api.md"], field
    for command in ("flyball operator run", "flyball page run", "flyball emergency", "flyball devcluster up"):
        assert f"## {command}\n" in made["reference/cli.md"], command
    assert "`--authenticate`, `--no-authenticate` |  | `FLYBALL_AUTHENTICATE` |" in made["reference/cli.md"]


def test_links_out_of_the_site_become_names() -> None:
    text = "[examples](../examples/manifests), [api](api.md#x), [`crds/a.yaml`](../crds/a.yaml), ![a](../a.png), [x](https://x.y)"
    assert named_outside(text, "how.md") == (
        "examples (`examples/manifests`), [api](api.md#x), `crds/a.yaml`, ![a](../a.png), [x](https://x.y)"
    )
    assert named_outside("[api](../api.md)", "reference/api.md") == "[api](../api.md)"


def test_lists_are_lists() -> None:
    text = "so:\n- one\n  on\n  - two\n\n```sh\n- no\n```\nend"
    assert in_python_markdown(text) == "so:\n\n- one\n    on\n    - two\n\n```sh\n- no\n```\nend"


@pytest.mark.slow
def test_the_site_is_built_without_a_complaint_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="no mkdocs-material: pip install -e '.[docs]'")
    answer = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=240,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert answer.returncode == 0, answer.stdout + answer.stderr
    built = list(tmp_path.rglob("*.html"))
    assert len(built) >= len(named_pages(CONFIGURATION["nav"]))
    assert "EnergyAwareJob" in (tmp_path / "reference" / "api.html").read_text()
    loading = re.compile(
        r"""<(?:script|img|iframe|source|link(?![^>]*rel="?canonical))[^>]*(?:src|href)="?((?:https?:)?//[^"\s>]+)"""
    )
    for page in built:
        assert loading.findall(page.read_text()) == [], page.name
    for style in tmp_path.rglob("*.css"):
        assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style.read_text()), style.name
