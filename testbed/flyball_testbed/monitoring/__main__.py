"""`python -m flyball_testbed.monitoring`: the dashboards' files of the chart, and their pictures in the documents."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from flyball_testbed.monitoring.files import CHART_DIRECTORY, write_files


def main() -> int:
    """Run the command; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m flyball_testbed.monitoring", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    files = commands.add_parser("files", help="write the chart's dashboards anew from their list of panels")
    files.add_argument("--output", type=Path, default=CHART_DIRECTORY, help="the folder to write into")
    pictures = commands.add_parser("pictures", help="run a site for some minutes and draw the dashboards of it")
    pictures.add_argument("--output", type=Path, default=Path("docs/images"), help="the folder of the pictures")
    pictures.add_argument("--seconds", type=float, default=300.0, help="how long the run takes")
    arguments = parser.parse_args()
    if arguments.command == "pictures":
        from flyball_testbed.monitoring.watched_run import draw_watched_run

        draw_watched_run(arguments.output, arguments.seconds, lambda line: print(line, flush=True))
        return 0
    for path in write_files(arguments.output):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
