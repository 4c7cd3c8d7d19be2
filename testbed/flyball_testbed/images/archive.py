"""Reads an image as it is kept in an OCI archive: its configuration, its layers, its files."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WHITEOUT_PREFIX = ".wh."
# containerd takes the first alone for a whole name; others the second.
NAME_ANNOTATIONS = ("io.containerd.image.name", "org.opencontainers.image.ref.name")


class ArchiveError(Exception):
    """An archive that is no OCI archive of one image, or whose layers take files away."""


@dataclass(frozen=True)
class Image:
    """One image: its `config` as the OCI image specification has it, and the digests of its layers, lowest first."""

    archive: Path
    config: dict[str, Any]
    layers: tuple[str, ...]
    digest: str

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.config["config"].get("Labels") or {})


def _blob(archive: tarfile.TarFile, digest: str) -> Any:
    file = archive.extractfile(f"blobs/{digest.replace(':', '/')}")
    if file is None:
        raise ArchiveError(f"the archive lacks {digest}")
    return file


def read_image(path: Path) -> Image:
    """The image of an OCI archive. Raises ArchiveError where it holds none, or more than one."""
    try:
        with tarfile.open(path) as archive:
            index_file = archive.extractfile("index.json")
            manifests = json.load(index_file)["manifests"] if index_file is not None else []
            if len(manifests) != 1:
                raise ArchiveError(f"{path} holds {len(manifests)} images, not one")
            digest = manifests[0]["digest"]
            manifest = json.load(_blob(archive, digest))
            config = json.load(_blob(archive, manifest["config"]["digest"]))
    except (KeyError, tarfile.TarError, json.JSONDecodeError) as error:
        raise ArchiveError(f"{path} is no OCI archive: {error}") from error
    return Image(path, config, tuple(layer["digest"] for layer in manifest["layers"]), digest)


def name_image(path: Path, target: Path, name: str) -> None:
    """Copy the OCI archive of one image, with the name under which `ctr images import` and podman are to have it.

    Its contents are the same; the archive's own files have no time, so that the same image is the same archive.
    """
    with tarfile.open(path) as source, tarfile.open(target, "w") as copy:
        for member in sorted(source, key=lambda each: each.name):
            contents = source.extractfile(member)
            data = contents.read() if contents is not None else b""
            if member.name == "index.json":
                index = json.loads(data)
                for manifest in index["manifests"]:
                    manifest["annotations"] = dict.fromkeys(NAME_ANNOTATIONS, name)
                data = json.dumps(index).encode()
            written = tarfile.TarInfo(member.name)
            written.type, written.mode, written.size = member.type, member.mode, len(data)
            copy.addfile(written, io.BytesIO(data))


# With the modes and owners that members have, which is what Python did before 3.11.4 knew filters.
_AS_IT_IS: dict[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}


def unpack(image: Image, directory: Path) -> None:
    """Unpack an image's layers over one another into an empty folder, owners and modes kept where we are root.

    Raises ArchiveError where a layer deletes what a lower one has (its bytes would be shipped for nothing), and where a
    file would lie outside of the folder.
    """
    root = directory.resolve()
    with tarfile.open(image.archive) as archive:
        for digest in image.layers:
            with tarfile.open(fileobj=_blob(archive, digest), mode="r|*") as layer:
                for member in layer:
                    if Path(member.name).name.startswith(WHITEOUT_PREFIX):
                        raise ArchiveError(f"{image.archive}: {digest} deletes {member.name} of a lower layer")
                    if not (root / member.name).resolve().is_relative_to(root):
                        raise ArchiveError(
                            f"{image.archive}: {digest} has {member.name}, which lies outside of the image"
                        )
                    layer.extract(member, root, **_AS_IT_IS)


def unpacked_bytes(directory: Path) -> int:
    """The bytes of all files of an unpacked image, each link counted once."""
    sizes: dict[tuple[int, int], int] = {}
    for path in directory.rglob("*"):
        if path.is_file() and not path.is_symlink():
            status = path.stat()
            sizes[status.st_dev, status.st_ino] = status.st_size
    return sum(sizes.values())
