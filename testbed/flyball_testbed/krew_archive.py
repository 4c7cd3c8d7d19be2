"""`python -m flyball_testbed.krew_archive`: the archives by which krew installs `kubectl flyball`, and their index entry.

An archive has everything but Python: the launcher, and in `lib` the package with its libraries, those that are compiled
once for each version of Python. Unpacked into a folder of PATH it works as it is. The same wheels give the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

import yaml

from flyball_testbed.controlplane.install import REPOSITORY

SOURCE = REPOSITORY / "deploy" / "krew"
LAUNCHER = "kubectl-flyball"
ANY = "any"
EXTRA = "view"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# krew's os and arch -> the tags of the wheels that run there
PLATFORMS = {
    "linux-amd64": ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64"),
    "linux-arm64": ("manylinux2014_aarch64", "manylinux_2_17_aarch64", "manylinux_2_28_aarch64"),
    "darwin-arm64": ("macosx_11_0_arm64",),
}


class KrewArchiveError(Exception):
    """An archive could not be made; the message says why."""


def lay_out(installed: Mapping[str, Path], target: Path) -> None:
    """Put what `pip` installed for each Python (`3.11`: its folder) into `target`: `any` once, the compiled by version.

    Raises KrewArchiveError where two Pythons have different versions of a library that is not compiled.
    """
    pure: dict[str, str] = {}
    for python, folder in installed.items():
        (target / f"cp{python.replace('.', '')}").mkdir(parents=True)
        for found in distributions(path=[str(folder)]):
            name = found.metadata["Name"]
            where = target / f"cp{python.replace('.', '')}"
            if "Root-Is-Purelib: true" in (found.read_text("WHEEL") or ""):
                if pure.setdefault(name, found.version) != found.version:
                    raise KrewArchiveError(f"{name} is {pure[name]}, and for Python {python} {found.version}")
                where = target / ANY
            for file in found.files or ():
                # Scripts lie outside; nobody calls them here.
                if ".." in file.parts or (where / file).exists():
                    continue
                (where / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(folder / file, where / file)


def pack(folder: Path) -> bytes:
    """A folder as a `.tar.gz` whose bytes follow from its contents alone; the launcher is the one program in it."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, filename="") as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            member = tarfile.TarInfo(str(path.relative_to(folder)))
            member.size, member.mtime = path.stat().st_size, 1
            member.mode = 0o755 if member.name == LAUNCHER else 0o644
            with path.open("rb") as contents:
                archive.addfile(member, contents)
    return packed.getvalue()


def index_entry(archives: Mapping[str, bytes], address: str) -> dict[str, Any]:
    """The manifest for the archives of some platforms, each at `address` and its file's name."""
    manifest: dict[str, Any] = yaml.safe_load((SOURCE / "flyball.yaml").read_text())
    manifest["spec"]["version"] = f"v{version('flyball')}"
    listed = []
    for platform in manifest["spec"]["platforms"]:
        labels = platform["selector"]["matchLabels"]
        archive = archives.get(f"{labels['os']}-{labels['arch']}")
        if archive is not None:
            name = archive_name(f"{labels['os']}-{labels['arch']}")
            listed.append({**platform, "uri": address + name, "sha256": hashlib.sha256(archive).hexdigest()})
    manifest["spec"]["platforms"] = listed
    return manifest


def archive_name(platform: str) -> str:
    return f"{LAUNCHER}-v{version('flyball')}-{platform}.tar.gz"


class _Readable(yaml.SafeDumper):
    """Writes a text of several lines as such."""


_Readable.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else '"' if text == "*" else None
    ),
)


def _run(*arguments: str) -> None:
    answer = subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise KrewArchiveError(f"{' '.join(arguments[:2])} failed:\n{answer.stderr.strip()[-1000:]}")


def make(platform: str, pythons: Iterable[str], wheel: Path, scratch: Path) -> bytes:
    """The archive of one platform. Raises KrewArchiveError, also where a library has no wheel for a Python."""
    installed = {}
    for python in pythons:
        installed[python] = scratch / "installed" / python
        tags = [word for tag in PLATFORMS[platform] for word in ("--platform", tag)]
        _run(
            "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", "--only-binary", ":all:",
            "--implementation", "cp", "--python-version", python, *tags,
            "--constraint", str(REPOSITORY / "constraints.txt"),
            "--target", str(installed[python]), f"{wheel}[{EXTRA}]",
        )  # fmt: skip
    room = scratch / "archive"
    lay_out(installed, room / "lib")
    shutil.copy(SOURCE / LAUNCHER, room)
    shutil.copy(REPOSITORY / "LICENSE", room)
    return pack(room)


def main() -> int:
    """Run the command; its exit status."""
    parser = argparse.ArgumentParser(
        "python -m flyball_testbed.krew_archive",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, default=Path("out/krew"), help="where archives and index entry go")
    parser.add_argument(
        "--platform", action="append", choices=list(PLATFORMS), help="only for this one; may be repeated"
    )
    parser.add_argument(
        "--python", action="append", help=f"only for this Python; may be repeated ({', '.join(PYTHONS)})"
    )
    parser.add_argument(
        "--address", default="https://example.invalid/flyball/", help="where the archives will be fetched from"
    )
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    archives = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            _run("hatchling", "build", "--target", "wheel", "--directory", folder)
            (wheel,) = Path(folder).glob("flyball-*.whl")
            for platform in arguments.platform or PLATFORMS:
                print(f"{platform}: fetching the libraries", flush=True)
                scratch = Path(folder) / platform
                archives[platform] = make(platform, arguments.python or PYTHONS, wheel, scratch)
                path = arguments.output / archive_name(platform)
                path.write_bytes(archives[platform])
                print(f"{path}  {len(archives[platform]) / 1e6:.1f} MB", flush=True)
    except KrewArchiveError as error:
        print(error, file=sys.stderr)
        return 1
    entry = arguments.output / "flyball.yaml"
    entry.write_text(yaml.dump(index_entry(archives, arguments.address), Dumper=_Readable, sort_keys=False))
    print(entry)
    return 0


if __name__ == "__main__":
    sys.exit(main())
