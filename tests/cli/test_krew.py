"""The krew manifest: what krew's own validation asks of one (internal/index/validation), and what it promises of us."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MANIFEST = yaml.safe_load((ROOT / "deploy/krew/flyball.yaml").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

PLUGIN_FIELDS = {"version", "homepage", "shortDescription", "description", "caveats", "platforms"}
PLATFORM_FIELDS = {"selector", "uri", "sha256", "bin", "files"}
SAFE_NAME = re.compile(r"^[\w-]+$")
SEMANTIC_VERSION = re.compile(r"^v\d+\.\d+\.\d+$")
LONGEST_SHORT_DESCRIPTION = 50


def wrong(manifest: dict[str, Any]) -> list[str]:
    """What krew would refuse of a manifest, and what its index' reviewers would."""
    spec = manifest.get("spec") or {}
    found = []
    if (
        manifest.get("apiVersion") != "krew.googlecontainertools.github.com/v1alpha2"
        or manifest.get("kind") != "Plugin"
    ):
        found.append("apiVersion or kind")
    if not SAFE_NAME.match(str((manifest.get("metadata") or {}).get("name"))):
        found.append("name")
    if spec.keys() - PLUGIN_FIELDS:
        found.append(f"fields that no plugin has: {spec.keys() - PLUGIN_FIELDS}")
    if not SEMANTIC_VERSION.match(str(spec.get("version"))):
        found.append("version")
    short = spec.get("shortDescription") or ""
    if not short or "\n" in short or len(short) > LONGEST_SHORT_DESCRIPTION or short.endswith("."):
        found.append("shortDescription")
    for platform in spec.get("platforms") or [{}]:
        if platform.keys() != PLATFORM_FIELDS:
            found.append(f"fields of a platform: {platform.keys() ^ PLATFORM_FIELDS}")
            continue
        if not re.fullmatch(r"https://\S+\.(tar\.gz|zip)", platform["uri"]):
            found.append("uri")
        if not re.fullmatch(r"[0-9a-f]{64}", platform["sha256"]):
            found.append("sha256")
        if platform["bin"].startswith("/") or ".." in platform["bin"]:
            found.append("bin")
        if not platform["files"] or any({"from", "to"} != item.keys() for item in platform["files"]):
            found.append("files")
        if not {"matchLabels", "matchExpressions"} & platform["selector"].keys():
            found.append("selector")
    return found


def test_krew_takes_it() -> None:
    assert wrong(MANIFEST) == []


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("version", "0.1.0", "version"),
        ("shortDescription", "x" * 51, "shortDescription"),
        ("platform", [], "fields that no plugin has"),
        ("platforms", [{"bin": "x"}], "fields of a platform"),
    ],
)
def test_what_krew_would_refuse_is_noticed(field: str, value: Any, complaint: str) -> None:
    assert any(complaint in found for found in wrong({**MANIFEST, "spec": {**MANIFEST["spec"], field: value}}))


def test_it_is_of_this_version_and_of_a_program_that_is_installed() -> None:
    assert MANIFEST["spec"]["version"] == f"v{PROJECT['version']}"
    for platform in MANIFEST["spec"]["platforms"]:
        assert platform["bin"] in PROJECT["scripts"]
    assert PROJECT["scripts"]["kubectl-flyball"] == PROJECT["scripts"]["flyball"]
