"""What the build of the images keeps, and how it gets rid of it."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from flyball_testbed.images.build import DOCKERFILE, REPOSITORY, ImageBuildError, remove_storage

requirements = runpy.run_path(str(REPOSITORY / "deploy/images/requirements.py"))["requirements"]


def stages() -> dict[str, tuple[str, list[str]]]:
    """Each stage of the Dockerfile: what it begins from, and its instructions."""
    text = re.sub(r"\\\n", " ", "\n".join(line for line in DOCKERFILE.read_text().splitlines() if line[:1] != "#"))
    found: dict[str, tuple[str, list[str]]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        begun = re.fullmatch(r"FROM (\S+) AS (\S+)", line)
        if begun is not None:
            found[begun.group(2)] = (begun.group(1), [])
        elif found:
            found[list(found)[-1]][1].append(line)
    return found


@pytest.mark.parametrize("image", ["operator", "agent"])
def test_nothing_of_the_checkout_but_lists_of_libraries_is_beneath_the_libraries_layer(image: str) -> None:
    all_stages = stages()
    beneath, name = [], f"{image}-libraries"
    while name in all_stages:
        name, instructions = all_stages[name]
        beneath += [line for line in instructions if line.startswith("COPY")]
    assert sorted(beneath) == [
        f"COPY --from=requirements /requirements/{image}.txt /source/libraries.txt",
        "COPY constraints.txt /source/",
        "COPY deploy/images/install.sh /source/",
    ]


def test_the_lists_know_of_pyproject_what_is_asked_for_and_nothing_else() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text()

    def listed(text: str) -> tuple[Any, Any]:
        project = tomllib.loads(text)["project"]
        return requirements(project, ["operator", "page"]), requirements(project, ["agent"])

    before = listed(text)
    changed = re.sub(r'^version = ".*"$', 'version = "9.9.9"', text, flags=re.MULTILINE)
    changed = changed.replace("\ndocs = [", '\ndocs = ["anything>=1", ').replace(
        "line-length = 120", "line-length = 99"
    )
    assert changed.count("9.9.9") == changed.count("anything") == changed.count("= 99") == 1
    assert listed(changed) == before
    assert listed(text.replace('"kopf>=', '"kopf>9, >=')) != before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_what_a_killed_build_left_mounted_is_removed_too(tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    merged = storage / "overlay" / "layer" / "merged"
    merged.mkdir(parents=True)
    mounting = subprocess.run(["mount", "-t", "tmpfs", "left", str(merged)], capture_output=True, check=False)
    if mounting.returncode != 0:
        pytest.skip("mounting is refused here")
    (merged / "busy").touch()
    remove_storage(storage)
    assert not storage.exists()
    assert str(storage) not in Path("/proc/self/mounts").read_text()


def test_a_folder_that_stays_is_said(tmp_path: Path) -> None:
    with pytest.raises(ImageBuildError, match="cannot be removed"):
        remove_storage(tmp_path / "none")


def test_what_the_dockerfile_copies_is_let_into_the_build() -> None:
    """What `.dockerignore` leaves out ends a build at its first COPY, minutes after it began."""
    let_in = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(
        r"^COPY (?!--from)(.+) \S+$", (REPOSITORY / "deploy/images/Dockerfile").read_text(), re.MULTILINE
    )
    sources = {source for line in copied for source in line.split()}
    assert {"pyproject.toml", "operator", "deploy/images/install.sh"} <= sources
    assert not {
        source for source in sources if not any(source == each or source.startswith(f"{each}/") for each in let_in)
    }
