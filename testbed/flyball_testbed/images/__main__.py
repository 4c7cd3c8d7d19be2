"""`python -m flyball_testbed.images`: build the images and put them, with their bills of materials, into a folder."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from flyball_testbed.images import build
from flyball_testbed.images.archive import read_image, unpack

BILL_OF_MATERIALS = Path("opt/flyball/bom.cdx.json")


def _say(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    """Run the command; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m flyball_testbed.images", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("out/images"), help="where the OCI archives go")
    parser.add_argument(
        "--debian", help="a base with apt, such as debian:trixie-slim, in place of one made by mmdebstrap"
    )
    parser.add_argument("--install-tools", action="store_true", help="apt-get install what is missing (needs root)")
    parser.add_argument("--verify", action="store_true", help="build once more from nothing and compare every layer")
    arguments = parser.parse_args()
    missing = [tool for tool in build.TOOLS if shutil.which(tool) is None]
    if missing and arguments.install_tools:
        for command in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
            subprocess.run(["apt-get", "--quiet", "--quiet", *command], check=True)
    try:
        found = build.find_images(_say, debian=arguments.debian)
        arguments.output.mkdir(parents=True, exist_ok=True)
        for name, archive in found.items():
            image = read_image(archive)
            with tempfile.TemporaryDirectory() as scratch:
                unpack(image, Path(scratch))
                shutil.copy(Path(scratch) / BILL_OF_MATERIALS, arguments.output / f"flyball-{name}.cdx.json")
            shutil.copy(archive, arguments.output / f"flyball-{name}.tar")
            print(f"{arguments.output}/flyball-{name}.tar  {image.digest}")
        if arguments.verify:
            with tempfile.TemporaryDirectory() as scratch:
                build.build(arguments.debian, Path(scratch), _say, use_cache=False)
                differing = build.differences(next(iter(found.values())).parent, Path(scratch))
            if differing:
                print(f"not the same again: {', '.join(differing)}", file=sys.stderr)
                return 1
            print("built again from nothing: every layer is the same")
    except (build.ImagesUnavailableError, build.ImageBuildError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
