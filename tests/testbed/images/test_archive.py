"""Reading and unpacking OCI archives, and the version of the sources that images are kept by."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest
from flyball_testbed.images import build
from flyball_testbed.images.archive import ArchiveError, name_image, read_image, unpack, unpacked_bytes


def layer_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for name, contents in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(contents), 0o644
            layer.addfile(member, io.BytesIO(contents))
    return buffer.getvalue()


def write_archive(path: Path, *layers: dict[str, bytes], images: int = 1) -> Path:
    """An OCI archive of an image with these layers."""
    blobs = {}

    def blob(contents: bytes) -> dict[str, object]:
        digest = hashlib.sha256(contents).hexdigest()
        blobs[digest] = contents
        return {"digest": f"sha256:{digest}", "size": len(contents)}

    config = blob(json.dumps({"config": {"Labels": {"title": "made"}}}).encode())
    manifest = blob(json.dumps({"config": config, "layers": [blob(layer_of(files)) for files in layers]}).encode())
    with tarfile.open(path, "w") as archive:
        files = {f"blobs/sha256/{digest}": contents for digest, contents in blobs.items()}
        files["index.json"] = json.dumps({"manifests": [manifest] * images}).encode()
        for name, contents in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(contents)
            archive.addfile(member, io.BytesIO(contents))
    return path


def test_layers_lie_over_one_another(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "a.tar", {"etc/a": b"old", "etc/b": b"12345"}, {"etc/a": b"newer"})
    image = read_image(archive)
    assert image.labels == {"title": "made"}
    root = tmp_path / "root"
    root.mkdir()
    unpack(image, root)
    assert (root / "etc/a").read_bytes() == b"newer"
    assert unpacked_bytes(root) == 10


def test_a_name_changes_nothing_but_the_name(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "a.tar", {"etc/a": b"a"})
    name_image(archive, tmp_path / "b.tar", "localhost/flyball-agent:1")
    before, after = read_image(archive), read_image(tmp_path / "b.tar")
    assert (after.digest, after.layers, after.config) == (before.digest, before.layers, before.config)
    with tarfile.open(tmp_path / "b.tar") as named:
        index = named.extractfile("index.json")
        assert index is not None
        (manifest,) = json.load(index)["manifests"]
    assert set(manifest["annotations"].values()) == {"localhost/flyball-agent:1"}
    name_image(archive, tmp_path / "c.tar", "localhost/flyball-agent:1")
    assert (tmp_path / "c.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_images_that_are_not_the_same_again_are_named(tmp_path: Path) -> None:
    for folder, contents in (("first", b"a"), ("second", b"b")):
        (tmp_path / folder).mkdir()
        write_archive(tmp_path / folder / "operator.tar", {"etc/a": b"same"})
        write_archive(tmp_path / folder / "agent.tar", {"etc/a": contents})
    assert build.differences(tmp_path / "first", tmp_path / "second") == ["agent"]
    assert build.differences(tmp_path / "first", tmp_path / "first") == []


def test_a_layer_that_only_hides_bytes_is_refused(tmp_path: Path) -> None:
    image = read_image(write_archive(tmp_path / "a.tar", {"bin/pip": b"x"}, {"bin/.wh.pip": b""}))
    with pytest.raises(ArchiveError, match=r"deletes bin/\.wh\.pip"):
        unpack(image, tmp_path)


@pytest.mark.parametrize("name", ["../outside", "{}/outside", "link/outside"])
def test_a_layer_cannot_reach_out_of_the_folder(tmp_path: Path, name: str) -> None:
    image = read_image(write_archive(tmp_path / "a.tar", {name.format(tmp_path): b"x"}))
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)  # as a lower layer may have left it
    with pytest.raises(ArchiveError, match="outside, which lies outside of the image"):
        unpack(image, root)
    assert not (tmp_path / "outside").exists()


def test_what_is_no_archive_of_one_image_says_so(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no tar")
    with pytest.raises(ArchiveError, match="is no OCI archive"):
        read_image(text)
    with pytest.raises(ArchiveError, match="holds 2 images, not one"):
        read_image(write_archive(tmp_path / "two.tar", {}, images=2))


def test_the_version_follows_what_goes_into_the_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def version() -> str:
        build.images_version.cache_clear()
        return build.images_version()

    try:
        monkeypatch.setattr(build, "REPOSITORY", tmp_path)
        (tmp_path / ".dockerignore").write_text("**\n!pyproject.toml\n!operator\n")
        (tmp_path / "operator").mkdir()
        (tmp_path / "pyproject.toml").write_text("a")
        (tmp_path / "operator" / "loop.py").write_text("b")
        first = version()
        (tmp_path / "notes.md").write_text("no part of an image")
        (tmp_path / "operator" / "__pycache__").mkdir()
        (tmp_path / "operator" / "__pycache__" / "loop.pyc").write_text("nor this")
        assert version() == first
        (tmp_path / "operator" / "loop.py").write_text("c")
        changed = version()
        assert changed != first
        (tmp_path / "operator" / "loop.py").rename(tmp_path / "operator" / "pool.py")
        assert version() not in (first, changed)
    finally:
        build.images_version.cache_clear()


def test_what_is_in_the_builds_context() -> None:
    files = {str(file.relative_to(build.REPOSITORY)) for file in build._context_files()}
    assert {"pyproject.toml", "constraints.txt", "deploy/images/install.sh", "crds/gpunodes.yaml"} <= files
    assert "operator/flyball_operator/loop.py" in files
    assert not [name for name in files if name.startswith(("tests/", "docs/", ".git/", "testbed/", "simulator/"))]


def test_a_machine_without_the_tools_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda tool: None if tool == "buildah" else f"/usr/bin/{tool}")
    assert build.why_unavailable() == "no buildah on this machine: apt-get install buildah"
    with pytest.raises(build.ImagesUnavailableError, match="apt-get install buildah"):
        build.build(None, tmp_path, print)


def test_a_step_that_fails_ends_with_its_last_lines() -> None:
    with pytest.raises(build.ImageBuildError, match=r"(?s)title: sh -c failed:.*the reason"):
        build._run(["sh", "-c", "echo the reason >&2; exit 3"], "title", print, {})
