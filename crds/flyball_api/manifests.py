"""The CRDs themselves, as the YAML beside this package has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

try:
    # libyaml's, which PyYAML has nearly everywhere: half a second less for a control plane's start.
    from yaml import CSafeLoader as SafeLoader
except ImportError:
    from yaml import SafeLoader  # type: ignore[assignment]


def manifest_directory() -> Path:
    """The folder with the CRDs as YAML, in an installed package or in a source tree."""
    installed = Path(__file__).with_name("manifests")
    return installed if installed.is_dir() else Path(__file__).parents[1]


def manifests() -> list[dict[str, Any]]:
    """The CustomResourceDefinitions, parsed, in the order of their names."""
    return read_manifests(manifest_directory())


def read_manifests(directory: Path) -> list[dict[str, Any]]:
    """Every manifest of a folder's `*.yaml`, in the order of the files' names; of an absent folder, none."""
    texts = (path.read_text() for path in sorted(directory.glob("*.yaml")))
    return [found for text in texts for found in yaml.load_all(text, SafeLoader) if found]
