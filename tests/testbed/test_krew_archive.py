"""krew's archives of `kubectl flyball`: what lies where, equal bytes, the index entry, and the launcher by itself."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest
from flyball_testbed.krew_archive import (
    LAUNCHER,
    PLATFORMS,
    PYTHONS,
    SOURCE,
    KrewArchiveError,
    archive_name,
    index_entry,
    lay_out,
    pack,
)

HERE = "{}.{}".format(*sys.version_info[:2])


def install(folder: Path, name: str, files: dict[str, str], *, pure: bool, number: str = "1.0") -> None:
    """A distribution as `pip install --target` leaves it."""
    about = f"{name}-{number}.dist-info"
    files = {
        **files,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n",
        f"{about}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: {str(pure).lower()}\n",
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    listed = [*files, f"{about}/RECORD", f"../../bin/{name}"]
    (folder / about / "RECORD").write_text("".join(f"{path},,\n" for path in listed))


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, Path]:
    folders = {python: tmp_path / python for python in (HERE, "3.99")}
    for python, folder in folders.items():
        says = "import compiled\ndef main():\n    print('runs', compiled.FOR)\n"
        install(folder, "flyball", {"flyball_cli/__init__.py": "", "flyball_cli/main.py": says}, pure=True)
        install(folder, "compiled", {"compiled.py": f"FOR = {python!r}\n"}, pure=False)
    return folders


def test_what_is_compiled_is_there_for_each_python_and_the_rest_once(
    installed: dict[str, Path], tmp_path: Path
) -> None:
    lay_out(installed, tmp_path / "lib")
    files = {str(path.relative_to(tmp_path / "lib")) for path in (tmp_path / "lib").rglob("*.py")}
    own = HERE.replace(".", "")
    assert files == {
        "any/flyball_cli/__init__.py", "any/flyball_cli/main.py", f"cp{own}/compiled.py", "cp399/compiled.py"
    }  # fmt: skip
    assert not list(tmp_path.rglob("bin")), "scripts are nobody's here"


def test_two_versions_of_one_library_are_refused(installed: dict[str, Path], tmp_path: Path) -> None:
    install(installed[HERE], "rich", {"rich.py": ""}, pure=True)
    install(installed["3.99"], "rich", {"rich.py": ""}, pure=True, number="2.0")
    with pytest.raises(KrewArchiveError, match=r"rich is 1\.0, and for Python 3\.99 2\.0"):
        lay_out(installed, tmp_path / "lib")


def test_an_archive_is_unpacked_and_works_whatever_the_python_that_unpacked_it(
    installed: dict[str, Path], tmp_path: Path
) -> None:
    room = tmp_path / "room"
    lay_out(installed, room / "lib")
    (room / LAUNCHER).write_bytes((SOURCE / LAUNCHER).read_bytes())
    packed = pack(room)
    os.utime(room / LAUNCHER)
    assert pack(room) == packed, "equal contents are equal bytes"
    store = tmp_path / "store"
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert {member.mode for member in archive if member.name != LAUNCHER} == {0o644}
        archive.extractall(store)  # noqa: S202 - our own
    # As krew has it on PATH: by a link, called by a bare environment, from anywhere.
    link = tmp_path / "bin" / LAUNCHER
    link.parent.mkdir()
    link.symlink_to(store / LAUNCHER)
    path = f"{Path(sys.executable).parent}{os.pathsep}/usr/bin{os.pathsep}/bin"
    answer = subprocess.run([link], env={"PATH": path}, cwd="/", capture_output=True, text=True, check=False)
    assert answer.stdout == f"runs {HERE}\n", answer.stderr

    (store / "lib" / f"cp{HERE.replace('.', '')}").rename(store / "lib" / "cp311x")
    (store / "lib" / "cp311x").rename(tmp_path / "gone")
    answer = subprocess.run([link], env={"PATH": path}, cwd="/", capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert f"this archive is for Python 3.99, and `python3` is {HERE}" in answer.stderr


def test_the_index_entry_names_what_was_made_and_nothing_else() -> None:
    made = {"linux-amd64": b"one", "darwin-arm64": b"two"}
    spec = index_entry(made, "https://example.com/releases/")["spec"]
    assert spec["version"] == f"v{version('flyball')}"
    assert {(each["uri"], each["sha256"]) for each in spec["platforms"]} == {
        (f"https://example.com/releases/{archive_name(platform)}", hashlib.sha256(contents).hexdigest())
        for platform, contents in made.items()
    }


def test_the_entry_has_every_platform_and_says_which_python() -> None:
    entry = index_entry(dict.fromkeys(PLATFORMS, b""), "https://example.com/")
    assert len(entry["spec"]["platforms"]) == len(PLATFORMS)
    assert f"Python {PYTHONS[0]} to {PYTHONS[-1]}" in entry["spec"]["caveats"]
