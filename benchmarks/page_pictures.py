"""The pictures of docs/page.md: the page in Chromium over a run of the demo, dark and light, and over 1,000 nodes.

    python -m benchmarks.page_pictures --output docs/images         # five minutes; needs Chromium

The demo is the real one (docs/demo.md), and `flyball page run` a process beside it; the 1,000 nodes are made up.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.browser import chromium, why_no_browser
from tests.support.shown_page import large_page, served_page
from tests.support.waiting import wait_until

PROGRAM = str(Path(sysconfig.get_path("scripts")) / "flyball")
WIDTH, HEIGHT, LARGE_HEIGHT = 1400, 1000, 1280
# The kinds of moments that the pictures are of: the cap has fallen, and jobs run and wait.
PICTURE_AFTER_SECONDS = 130.0
JOB_POINT = "#job-detail .present"


@contextmanager
def process(*command: str, environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block."""
    with log.open("wb") as out:
        started = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **environment})
    try:
        yield started
    finally:
        started.send_signal(signal.SIGINT)
        try:
            started.wait(60)
        except subprocess.TimeoutExpired:
            started.kill()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own process on loopback
            return bool(answer.status == 200)
    except OSError:
        return False


def picture(
    browser: Any, address: str, path: Path, scheme: str, wait_for: str, height: int = HEIGHT, part: str = ""
) -> bool:
    """The page, or the `part` of it, once there is what the selector `wait_for` names; whether it is still there."""
    page = browser.new_page(viewport={"width": WIDTH, "height": height}, color_scheme=scheme)
    page.goto(address)
    page.wait_for_selector(wait_for, timeout=60_000)
    page.mouse.move(0, 0)
    page.evaluate(
        "new Promise((done) => setTimeout(done, 2500))"
    )  # another round: what is asked for later is there, too
    if part:
        page.locator(part).screenshot(path=path)
    else:
        page.screenshot(path=path)
    there = bool(page.locator(wait_for).count())
    page.close()
    print(path)
    return there


def of_the_demo(browser: Any, output: Path) -> None:
    """Start the demo and a page over it, and take its pictures while the jobs run."""
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        room = Path(folder)
        command = (PROGRAM, "demo", "--headless", "--output", str(room / "out"))
        with process(*command, environment={"TMPDIR": folder}, log=room / "demo.log") as demo:

            def running() -> bool:
                assert demo.poll() is None, (room / "demo.log").read_text()[-2000:]
                return bool(list(room.glob("flyball-demo-*/cluster/**/*operator*.kubeconfig")))

            wait_until(running, "the demo's operator", seconds=300)
            (admin,) = room.glob("flyball-demo-*/cluster/**/admin.kubeconfig")
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            command = (PROGRAM, "page", "run", "--kubeconfig", str(admin), "--port", str(port))
            address = f"http://127.0.0.1:{port}/"
            with process(*command, environment={}, log=room / "page.log"):
                wait_until(lambda: answers(f"{address}readyz"), "the page", seconds=120)
                began = time.monotonic()
                wait_until(
                    lambda: time.monotonic() - began >= PICTURE_AFTER_SECONDS, seconds=PICTURE_AFTER_SECONDS + 60
                )
                for scheme in ("light", "dark"):
                    picture(browser, address, output / f"page-{scheme}.png", scheme, ".cap")
                # A job that is resized meanwhile has left its point of the frontier: then it is another's turn.
                wait_until(
                    lambda: picture(
                        browser, address + longest_job(browser, address), output / "page-job.png", "light",
                        JOB_POINT, part="#job-detail",
                    ),
                    "a job that runs while it is drawn",
                    seconds=60,
                )  # fmt: skip


def longest_job(browser: Any, address: str) -> str:
    """The address within the page of the job that will run for longest, so that it still does when it is drawn."""
    page = browser.new_page()
    page.goto(address)
    name = page.evaluate(
        """async () => {
          const { jobs } = await (await fetch("api/jobs")).json();
          const running = jobs.filter((job) => job.gpus > 0 && job.finish && job.maxGpus > job.minGpus);
          running.sort((one, other) => other.finish - one.finish);
          return `${running[0].namespace}/${running[0].name}`;
        }"""
    )
    page.close()
    return f"#job={name}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="the folder of the pictures")
    parser.add_argument("--only", choices=["demo", "large"], help="one kind of them")
    arguments = parser.parse_args()
    why_not = why_no_browser()
    if why_not is not None:
        print(why_not, file=sys.stderr)
        return 1
    with chromium() as browser:
        if arguments.only != "demo":
            with served_page(large_page(1000)) as address:
                for scheme in ("light", "dark"):
                    picture(
                        browser,
                        address,
                        arguments.output / f"page-1000-nodes-{scheme}.png",
                        scheme,
                        ".cap",
                        LARGE_HEIGHT,
                    )
        if arguments.only != "large":
            of_the_demo(browser, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
