"""The official Kubernetes release binaries, each verified against its published SHA-256.

etcd and kwok publish elsewhere and otherwise; they build in seconds, so only Kubernetes' own programs are fetched.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import platform
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

OFFICIAL_RELEASES = "https://dl.k8s.io/release"
CONNECT_TIMEOUT_SECONDS = 5.0
CHUNK_BYTES = 1 << 20
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class DownloadError(Exception):
    """A program could not be fetched, or is not what was published."""


def release_url(program: str, version: str) -> str:
    """Where a program is published for this machine's architecture. Raises DownloadError where there is no such one."""
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise DownloadError(f"no release for {machine} (there are releases for {', '.join(sorted(ARCHITECTURES))})")
    return f"{OFFICIAL_RELEASES}/{version}/bin/linux/{ARCHITECTURES[machine]}/{program}"


def _read(url: str, write: Callable[[bytes], object]) -> None:
    try:
        with urllib.request.urlopen(url, timeout=CONNECT_TIMEOUT_SECONDS) as answer:  # noqa: S310 - a constant https URL
            while chunk := answer.read(CHUNK_BYTES):
                write(chunk)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise DownloadError(f"{url}: {getattr(error, 'reason', None) or error}") from error


def fetch(url: str, target: Path) -> None:
    """Fetch one program to `target`, in one rename. Raises DownloadError where its checksum is not the published one."""
    published = bytearray()
    _read(url + ".sha256", published.extend)
    expected = published.decode(errors="replace").split()
    if not expected or len(expected[0]) != 64:
        raise DownloadError(f"{url}.sha256 holds no SHA-256")
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        digest = hashlib.sha256()
        with os.fdopen(descriptor, "wb") as file:

            def write(chunk: bytes) -> None:
                digest.update(chunk)
                file.write(chunk)

            _read(url, write)
        if digest.hexdigest() != expected[0]:
            raise DownloadError(f"{url} has SHA-256 {digest.hexdigest()}, published is {expected[0]}")
        os.chmod(temporary, 0o755)  # noqa: S103 - a program, for every user of the machine
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)


def fetch_kubernetes(
    programs: Sequence[str], version: str, directory: Path, report: Callable[[str], None] = print
) -> None:
    """Fetch Kubernetes programs of one version into a folder; the first that fails ends it with DownloadError."""
    for program in programs:
        started = time.monotonic()
        fetch(release_url(program, version), directory / program)
        report(f"fetched {program} {version} in {time.monotonic() - started:.0f} s")
