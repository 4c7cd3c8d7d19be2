"""Builds the images with buildah from `deploy/images/Dockerfile`, on a base made of Debian's packages, once a version.

A version is the hash of everything that goes into the images. It needs root, buildah and mmdebstrap, no daemon and no
registry; what is kept lies in `$XDG_CACHE_HOME/flyball/images`.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from flyball_testbed.controlplane.programs.build import locked
from flyball_testbed.images.archive import name_image, read_image

REPOSITORY = Path(__file__).resolve().parents[3]
DOCKERFILE = REPOSITORY / "deploy" / "images" / "Dockerfile"
IMAGES = ("operator", "agent")
TOOLS = ("buildah", "mmdebstrap")
DEBIAN_RELEASE = "trixie"
DEBIAN_MIRROR = "http://deb.debian.org/debian"
LOCAL_DEBIAN = f"localhost/flyball-debian:{DEBIAN_RELEASE}"
# Every file has this time, so that equal contents are equal bytes.
TIMESTAMP = 1
VERSIONS_KEPT = 3
SCRATCH_PREFIX = ".building."
STORAGE_LIMIT_BYTES = 8 * 10**9

Report = Callable[[str], None]


class ImagesUnavailableError(Exception):
    """The images are not there and cannot be built; the message says what is missing."""


class ImageBuildError(Exception):
    """A step of the build failed; the message has its last lines."""


def cache_directory() -> Path:
    """The folder of the images and of what their build keeps."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "flyball" / "images"


def _context_files() -> Iterator[Path]:
    """The files that the build can see: those that `.dockerignore` lets in, sorted."""
    for line in sorted((REPOSITORY / ".dockerignore").read_text().splitlines()):
        if not line.startswith("!"):
            continue
        path = REPOSITORY / line.removeprefix("!")
        found = [path] if path.is_file() else sorted(path.rglob("*"))
        yield from (file for file in found if file.is_file() and "__pycache__" not in file.parts)


@functools.cache
def images_version() -> str:
    """The version of the images that this checkout makes: 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for file in _context_files():
        digest.update(f"{file.relative_to(REPOSITORY)} {os.access(file, os.X_OK)}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def why_unavailable() -> str | None:
    """Why images cannot be built on this machine; None where they can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"no {' and no '.join(missing)} on this machine: apt-get install {' '.join(missing)}"
    return None if os.geteuid() == 0 else "building images without a daemon needs root"


def built_images() -> dict[str, Path] | None:
    """The OCI archive of each image of this version, where they have been built."""
    directory = cache_directory() / images_version()
    found = {name: directory / f"{name}.tar" for name in IMAGES}
    # They enter the cache together, by one rename.
    return found if directory.is_dir() else None


def _run(command: Sequence[str], title: str, report: Report, environment: dict[str, str]) -> str:
    started = time.monotonic()
    answer = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    if answer.returncode != 0:
        lines = (answer.stdout + answer.stderr).splitlines()[-30:]
        raise ImageBuildError(f"{title}: {' '.join(command[:2])} failed:\n" + "\n".join(lines))
    report(f"{title}: {time.monotonic() - started:.0f} s")
    return answer.stdout.strip()


def _pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _pip_settings(directory: Path) -> list[str]:
    """Mounts that let `pip` inside the build fetch as it does here: this machine's settings and certificates."""
    settings = _pip("config", "list")
    lines = [line.split("=", 1) for line in settings.splitlines() if line.startswith(("global.", "install.", ":env:."))]
    values = {name.rpartition(".")[2]: value.strip("'\"") for name, value in lines}
    wanted = {name: value for name, value in values.items() if name in ("index-url", "extra-index-url", "timeout")}
    bundle = Path(values.get("cert") or "/etc/ssl/certs/ca-certificates.crt")
    if bundle.is_file():
        shutil.copy(bundle, directory / "certificates.crt")
        wanted["cert"] = "/run/pip/certificates.crt"
    (directory / "pip.conf").write_text("[global]\n" + "".join(f"{name} = {value}\n" for name, value in wanted.items()))
    return ["--volume", f"{directory}:/run/pip:ro", "--volume", f"{directory}/pip.conf:/etc/pip.conf:ro"]


def remove_storage(storage: Path) -> None:
    """Remove a folder of layers, with what a build that was killed left mounted in it. Raises ImageBuildError."""
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for point in sorted((point for point in mounted if point.startswith(f"{storage}/")), reverse=True):
        subprocess.run(["umount", "--lazy", point], capture_output=True, check=False)
    try:
        shutil.rmtree(storage)
    except OSError as error:
        raise ImageBuildError(f"{storage} has grown large and cannot be removed: {error}") from error


def _storage(directory: Path) -> dict[str, str]:
    """The environment that has buildah keep its layers in a folder of ours; begun afresh when it has grown large."""
    storage = directory / "storage"
    if storage.exists():
        used = subprocess.run(
            ["du", "-sx", "--block-size=1", str(storage)], capture_output=True, text=True, check=False
        )
        if used.returncode == 0 and int(used.stdout.split()[0]) > STORAGE_LIMIT_BYTES:
            remove_storage(storage)
    configuration = directory / "storage.conf"
    configuration.write_text(
        f'[storage]\ndriver = "overlay"\nrunroot = "{storage / "run"}"\ngraphroot = "{storage / "graph"}"\n'
    )
    return {"CONTAINERS_STORAGE_CONF": str(configuration)}


def _debian(environment: dict[str, str], report: Report) -> str:
    """The base of the build, made of Debian's packages by mmdebstrap unless it is there."""
    present = subprocess.run(
        ["buildah", "inspect", "--type=image", LOCAL_DEBIAN],
        capture_output=True, check=False, env={**os.environ, **environment},
    )  # fmt: skip
    if present.returncode == 0:
        return LOCAL_DEBIAN
    with tempfile.TemporaryDirectory() as scratch:
        tar = f"{scratch}/debian.tar"
        command = ["mmdebstrap", "--mode=root", "--variant=apt", DEBIAN_RELEASE, tar, DEBIAN_MIRROR]
        _run(command, f"Debian {DEBIAN_RELEASE}", report, environment)
        container = _run(["buildah", "from", "scratch"], "an empty image", report, environment)
        _run(["buildah", "add", "--quiet", container, tar, "/"], "Debian into it", report, environment)
        _run(["buildah", "commit", "--quiet", "--rm", container, LOCAL_DEBIAN], "the base", report, environment)
    return LOCAL_DEBIAN


def revision() -> str:
    """The commit of this checkout, with `-dirty` where files differ from it; "unknown" where there is no git."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        capture_output=True, text=True, check=False, cwd=REPOSITORY,
    )  # fmt: skip
    return described.stdout.strip() or "unknown"


def build(debian: str | None, target: Path, report: Report, *, use_cache: bool = True) -> None:
    """Build every image into `target`, an OCI archive each. `debian` is the base's name, None for one made here.

    Raises ImagesUnavailableError and ImageBuildError.
    """
    reason = why_unavailable()
    if reason is not None:
        raise ImagesUnavailableError(reason)
    directory = cache_directory()
    directory.mkdir(parents=True, exist_ok=True)
    environment = _storage(directory)
    base = debian or _debian(environment, report)
    with tempfile.TemporaryDirectory() as scratch:
        common = [
            "buildah", "bud", "--quiet", "--isolation", "chroot", "--network", "host", "--timestamp", str(TIMESTAMP),
            "--layers", *([] if use_cache else ["--no-cache"]), *_pip_settings(Path(scratch)), "--file", str(DOCKERFILE),
            "--build-arg", f"DEBIAN={base}", "--build-arg", f"VERSION={version('flyball')}",
            "--build-arg", f"REVISION={revision()}",
        ]  # fmt: skip
        for name in IMAGES:
            tag = f"localhost/flyball-{name}:{images_version()}"
            _run([*common, "--target", name, "--tag", tag, str(REPOSITORY)], f"flyball-{name}", report, environment)
            pushed = Path(scratch) / f"{name}.tar"
            _run(["buildah", "push", "--quiet", tag, f"oci-archive:{pushed}:{tag}"], pushed.name, report, environment)
            # The chart asks for this name by default: imported into a node's store it is found as it is.
            name_image(pushed, target / pushed.name, f"localhost/flyball-{name}:{version('flyball')}")
            pushed.unlink()


def find_images(report: Report = print, debian: str | None = None) -> dict[str, Path]:
    """The OCI archive of each image of this version; built where they are not there yet, which takes minutes once.

    Raises ImagesUnavailableError where this machine cannot build them, ImageBuildError where the build fails.
    """
    directory = cache_directory()
    with locked(directory / "lock", report):
        found = built_images()
        if found is not None:
            return found
        for left_over in directory.glob(f"{SCRATCH_PREFIX}*"):
            shutil.rmtree(left_over)  # of a build that was killed: we hold the lock, so nobody uses it
        with tempfile.TemporaryDirectory(prefix=SCRATCH_PREFIX, dir=directory) as scratch:
            target = Path(scratch) / "images"
            target.mkdir()
            version_before = images_version()
            build(debian, target, report)
            images_version.cache_clear()
            if images_version() != version_before:
                raise ImageBuildError("the sources changed while the images were being built: begin again")
            target.rename(directory / version_before)
        kept = sorted(directory.glob("????????????????"), key=lambda path: path.stat().st_mtime)
        for old in kept[:-VERSIONS_KEPT]:
            shutil.rmtree(old)
    found = built_images()
    if found is None:
        raise ImageBuildError(f"{directory / images_version()} was removed while it was being built")
    return found


def differences(first: Path, second: Path) -> list[str]:
    """The images of two folders whose layers are not the same, byte for byte."""
    return [
        name for name in IMAGES if read_image(first / f"{name}.tar").layers != read_image(second / f"{name}.tar").layers
    ]
