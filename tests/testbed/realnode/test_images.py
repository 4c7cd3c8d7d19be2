"""Images from a folder: what they hold, and that the same files give the same image."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from flyball_testbed.realnode.images import ImageDefaults, write_image

IMAGE = ImageDefaults("flyball.dev/thing:1", ["/bin/thing"], {"PATH": "/bin", "HOME": "/"}, user="65532:65532")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "thing").write_bytes(b"program")
    (folder / "bin" / "thing").chmod(0o755)
    (folder / "bin" / "other").symlink_to("thing")
    return folder


def read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def blob(archive: tarfile.TarFile, descriptor: dict[str, Any]) -> bytes:
    content = read(archive, f"blobs/{descriptor['digest'].replace(':', '/')}")
    assert hashlib.sha256(content).hexdigest() == descriptor["digest"].partition(":")[2]
    assert len(content) == descriptor["size"]
    return content


def test_an_image_says_what_it_is_and_holds_the_folder(root: Path, tmp_path: Path) -> None:
    digest = write_image(IMAGE, root, tmp_path / "image.tar")
    with tarfile.open(tmp_path / "image.tar") as archive:
        (named,) = json.loads(read(archive, "index.json"))["manifests"]
        assert named["digest"] == digest
        assert set(named["annotations"].values()) == {"flyball.dev/thing:1"}
        manifest = json.loads(blob(archive, named))
        configured = json.loads(blob(archive, manifest["config"]))
        assert configured["config"] == {
            "Entrypoint": ["/bin/thing"], "Env": ["HOME=/", "PATH=/bin"], "User": "65532:65532"
        }  # fmt: skip
        (layer,) = manifest["layers"]
        assert configured["rootfs"]["diff_ids"] == [layer["digest"]]
        (tmp_path / "layer.tar").write_bytes(blob(archive, layer))
    with tarfile.open(tmp_path / "layer.tar") as files:
        assert files.getnames() == ["bin", "bin/other", "bin/thing"]
        thing = files.getmember("bin/thing")
        assert (thing.mode & 0o777, thing.uid, thing.gid, thing.mtime) == (0o755, 0, 0, 0)
        assert files.getmember("bin/other").linkname == "thing"


def test_the_same_files_give_the_same_image(root: Path, tmp_path: Path) -> None:
    first = write_image(IMAGE, root, tmp_path / "first.tar")
    os.utime(root / "bin" / "thing", (1, 1))
    assert write_image(IMAGE, root, tmp_path / "second.tar") == first
    (root / "bin" / "thing").write_bytes(b"another")
    assert write_image(IMAGE, root, tmp_path / "third.tar") != first


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        write_image(IMAGE, tmp_path / "nowhere", tmp_path / "image.tar")
