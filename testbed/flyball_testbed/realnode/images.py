"""Container images (OCI layout, one layer, in a tar) from a folder, for nodes that can pull from nowhere."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LAYER = "application/vnd.oci.image.layer.v1.tar"
CONFIGURATION = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
NAME_ANNOTATIONS = ("io.containerd.image.name", "org.opencontainers.image.ref.name")


@dataclass(frozen=True)
class ImageDefaults:
    """What a container of the image is given when its pod says nothing else. `reference` is its full name with a tag."""

    reference: str
    entrypoint: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=lambda: {"PATH": "/usr/local/bin:/usr/bin:/bin"})
    user: str = "0:0"


def write_image(image: ImageDefaults, root: Path, target: Path) -> str:
    """Write the image whose root file system is the folder `root` to the tar `target`; its digest.

    The same files give the same digest: owners are root, times are zero, names are in order. Raises FileNotFoundError
    where there is no such folder.
    """
    layer = _layer(root)
    configuration = {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {
            "Entrypoint": list(image.entrypoint),
            "Env": [f"{name}={value}" for name, value in sorted(image.environment.items())],
            "User": image.user,
        },
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    configured = _json(configuration)
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _descriptor(CONFIGURATION, configured),
            "layers": [_descriptor(LAYER, layer)],
        }
    )
    named = {**_descriptor(MANIFEST, manifest), "annotations": dict.fromkeys(NAME_ANNOTATIONS, image.reference)}
    with tarfile.open(target, "w") as archive:
        _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(archive, "index.json", _json({"schemaVersion": 2, "manifests": [named]}))
        for blob in (layer, configured, manifest):
            _add(archive, f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}", blob)
    return _digest(manifest)


def _layer(root: Path) -> bytes:
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {root} to make an image of")
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            archive.add(path, arcname=str(path.relative_to(root)), recursive=False, filter=_plain)
    return content.getvalue()


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _json(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True).encode()


def _descriptor(media_type: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(content), "size": len(content)}


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
