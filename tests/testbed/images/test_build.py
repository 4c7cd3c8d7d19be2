"""What the build of the images keeps, and how it gets rid of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from flyball_testbed.images.build import ImageBuildError, remove_storage


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_what_a_killed_build_left_mounted_is_removed_too(tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    merged = storage / "overlay" / "layer" / "merged"
    merged.mkdir(parents=True)
    mounting = subprocess.run(["mount", "-t", "tmpfs", "left", str(merged)], capture_output=True, check=False)
    if mounting.returncode != 0:
        pytest.skip("mounting is refused here")
    (merged / "busy").touch()
    remove_storage(storage)
    assert not storage.exists()
    assert str(storage) not in Path("/proc/self/mounts").read_text()


def test_a_folder_that_stays_is_said(tmp_path: Path) -> None:
    with pytest.raises(ImageBuildError, match="cannot be removed"):
        remove_storage(tmp_path / "none")
