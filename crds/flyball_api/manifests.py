"""The CRDs themselves, as the YAML beside this package has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def manifest_directory() -> Path:
    """The folder with the CRDs as YAML, in an installed package or in a source tree."""
    installed = Path(__file__).with_name("manifests")
    return installed if installed.is_dir() else Path(__file__).parents[1]


def manifests() -> list[dict[str, Any]]:
    """The CustomResourceDefinitions, parsed, in the order of their names."""
    return [yaml.safe_load(path.read_text()) for path in sorted(manifest_directory().glob("*.yaml"))]
