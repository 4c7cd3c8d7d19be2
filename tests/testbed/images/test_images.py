"""What the images hold and what they do not, as they come out of the build (`make images`)."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions, version
from pathlib import Path

import pytest
from flyball_testbed.images.archive import Image, read_image, unpack, unpacked_bytes
from flyball_testbed.images.build import IMAGES, built_images

from tests.support.components import COMMANDS, COMPONENTS, IMPORT_ALL

pytestmark = pytest.mark.slow

UNPACKED_LIMIT_BYTES = {"operator": 330_000_000, "agent": 130_000_000}
IN_IMAGE = {"operator": ("operator", "page", "service"), "agent": ("agent",)}
SITE_PACKAGES = "opt/flyball/lib/python3.13/site-packages"
PYTHON = "/opt/flyball/bin/python"
USER = 65532
UNCHECKED_HASH = 1  # PEP 552: flags of a .pyc that is valid whatever its source's time is
# A shell of its own mount namespace makes the root read-only, as the chart does, and drops to the image's user.
READ_ONLY = f'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec chroot --userspec={USER}:{USER} "$0" "$@"'
# What the dynamic loader, argv[1], finds for each library of the other arguments.
LIST_NEEDED = """
import subprocess, sys
for library in sys.argv[2:]:
    print(library, subprocess.run([sys.argv[1], "--list", library], capture_output=True, text=True).stdout)
"""


@dataclass(frozen=True)
class Unpacked:
    """An image and the folder of its files."""

    name: str
    image: Image
    root: Path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the image as its user, on a root that cannot be written."""
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", READ_ONLY, str(self.root), *command],
            capture_output=True, text=True, check=False, timeout=120,
            env={"PATH": "/opt/flyball/bin:/usr/bin:/bin:/sbin:/usr/sbin", "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip


@pytest.fixture(scope="module", params=IMAGES)
def unpacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unpacked]:
    """One image of this checkout; skipped where it has not been built."""
    archives = built_images()
    if archives is None:
        pytest.skip("no images of this version of the sources: `make images` builds them")
    if os.geteuid() != 0:
        pytest.skip("an image's files are unpacked and run by root")
    root = tmp_path_factory.mktemp(request.param)
    image = read_image(archives[request.param])
    unpack(image, root)
    root.chmod(0o755)
    yield Unpacked(request.param, image, root)
    shutil.rmtree(root)


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]


@pytest.mark.slow
def test_it_answers_as_the_users_command(unpacked: Unpacked) -> None:
    answer = unpacked.run("/opt/flyball/bin/flyball", "--version")
    assert answer.stdout == f"flyball {version('flyball')}\n", answer.stderr
    for command in (*(COMMANDS[each] for each in IN_IMAGE[unpacked.name]), ()):
        assert unpacked.run("/opt/flyball/bin/flyball", *command, "--help").returncode == 0


@pytest.mark.slow
def test_every_module_of_its_components_imports(unpacked: Unpacked) -> None:
    answer = unpacked.run(
        PYTHON, "-c", IMPORT_ALL, json.dumps([name for each in IN_IMAGE[unpacked.name] for name in COMPONENTS[each]])
    )
    assert answer.returncode == 0, answer.stderr


def test_what_neither_component_is_made_of_is_left_out_and_said_so(unpacked: Unpacked) -> None:
    ours = {path.name for path in (unpacked.root / SITE_PACKAGES).glob("flyball_*")}
    assert not ours & {"flyball_simulator", "flyball_studies", "flyball_testbed"}
    answer = unpacked.run("/opt/flyball/bin/flyball", "devcluster", "status")
    assert answer.returncode == 2
    assert "install flyball[testbed]" in answer.stderr, answer.stderr


def test_the_other_components_libraries_are_not_there(unpacked: Unpacked) -> None:
    installed = {each.metadata["Name"].lower() for each in distributions(path=[str(unpacked.root / SITE_PACKAGES)])}
    assert {"aiohttp", "flyball", "msgspec"} <= installed
    others = {
        "operator": {"grpcio", "nvidia-ml-py"},
        "agent": {"numpy", "scipy", "kopf", "highspy", "pylmcf", "fastapi"},
    }
    assert not installed & (others[unpacked.name] | {"matplotlib", "pip", "setuptools", "hatchling"})


@pytest.mark.slow
def test_nothing_can_be_run_but_python_and_flyball(unpacked: Unpacked) -> None:
    programs = {
        str(path.relative_to(unpacked.root))
        for path in files(unpacked.root)
        if path.stat().st_mode & 0o111 and ".so" not in path.name and not path.name.endswith(".py")
    }
    assert programs == {"opt/flyball/bin/flyball", "usr/bin/python3.13"}


def test_nobody_gains_rights_by_a_file(unpacked: Unpacked) -> None:
    for path in [unpacked.root, *unpacked.root.rglob("*")]:
        if path.is_symlink():
            continue
        mode = path.stat().st_mode
        assert not mode & (stat.S_ISUID | stat.S_ISGID) or path.is_dir(), path
        assert not mode & stat.S_IWOTH or mode & stat.S_ISVTX, path
        assert path.stat().st_uid == 0, f"{path} belongs to {path.stat().st_uid}: its own process could change it"


@pytest.mark.slow
def test_libraries_find_what_they_link_to(unpacked: Unpacked) -> None:
    loader = "/lib64/ld-linux-x86-64.so.2"
    shared = [path for path in files(unpacked.root) if ".so" in path.name and path.read_bytes()[:4] == b"\x7fELF"]
    assert len(shared) > 50
    names = [f"/{path.relative_to(unpacked.root)}" for path in shared]
    answer = unpacked.run(PYTHON, "-c", LIST_NEEDED, loader, *names)
    assert answer.returncode == 0, answer.stderr
    assert "libc.so.6 =>" in answer.stdout
    assert "not found" not in answer.stdout, [line for line in answer.stdout.splitlines() if "not found" in line]


def test_compiled_modules_are_there_and_need_no_times(unpacked: Unpacked) -> None:
    ours = list((unpacked.root / SITE_PACKAGES).glob("flyball_*/**/*.py"))
    assert len(ours) > 100
    for path in ours:
        compiled = path.parent / "__pycache__" / f"{path.stem}.cpython-313.pyc"
        assert int.from_bytes(compiled.read_bytes()[4:8], "little") == UNCHECKED_HASH, compiled


def test_the_image_says_who_runs_what(unpacked: Unpacked) -> None:
    config = unpacked.image.config["config"]
    assert config["User"] == f"{USER}:{USER}"
    assert config["Entrypoint"] == ["/opt/flyball/bin/flyball"]
    assert config["Cmd"] == [unpacked.name, "run"]
    labels = unpacked.image.labels
    assert labels["org.opencontainers.image.title"] == f"flyball-{unpacked.name}"
    assert labels["org.opencontainers.image.version"] == version("flyball")
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", labels["org.opencontainers.image.revision"])
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert f"flyball:x:{USER}:" in (unpacked.root / "etc/passwd").read_text()


def test_the_bill_of_materials_is_what_is_installed(unpacked: Unpacked) -> None:
    document = json.loads((unpacked.root / "opt/flyball/bom.cdx.json").read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    listed = [component["purl"] for component in document["components"]]
    assert len(set(listed)) == len(listed)
    assert all(re.fullmatch(r"pkg:(pypi|deb/debian)/[^@]+@[^@]+", purl) for purl in listed)
    folders = list((unpacked.root / SITE_PACKAGES).glob("*.dist-info"))
    packages = list((unpacked.root / "var/lib/dpkg/status.d").iterdir())
    assert sum(purl.startswith("pkg:pypi/") for purl in listed) == len(folders)
    assert sum(purl.startswith("pkg:deb/") for purl in listed) == len(packages)
    names = {component["name"] for component in document["components"]}
    assert {"flyball", "aiohttp", "libc6", "libssl3t64", "libpython3.13-stdlib"} <= names
    # Each of Debian's says under which licence it comes.
    assert all((unpacked.root / f"usr/share/doc/{package.name}").exists() for package in packages)


def test_it_is_as_small_as_promised(unpacked: Unpacked) -> None:
    assert 20_000_000 < unpacked_bytes(unpacked.root) <= UNPACKED_LIMIT_BYTES[unpacked.name]


def test_files_have_one_time(unpacked: Unpacked) -> None:
    assert {int(path.stat().st_mtime) for path in files(unpacked.root)} == {1}
