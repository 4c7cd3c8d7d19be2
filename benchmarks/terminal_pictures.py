"""The pictures of `flyball top` in docs/kubectl.md, from jobs that run: `python -m benchmarks.terminal_pictures`.

Starts a control plane with 6 nodes of 8 simulated GPUs, three caps and seven jobs, follows it in the terminal view for a
minute, takes the screens as PNG by a headless Chromium (as SVG where there is none), and prints what `flyball why` and
`flyball report` say then.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shutil
import subprocess
import sysconfig
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from flyball_api.energy_aware_job import JobEnergy, read_energy_aware_job
from flyball_api.power_cap import PowerCapSpec
from flyball_api.values.label_selector import LabelSelector
from flyball_api.writing import api_object, to_json
from flyball_cli.cluster.live_cluster import LiveCluster
from flyball_cli.cluster.terminal_view.app import FlyballTop
from flyball_cli.cluster.terminal_view.screens import WhyScreen
from flyball_kube.resources import ENERGY_AWARE_JOBS, POWER_CAPS
from flyball_kube.session import ApiSession
from flyball_testbed.site import Site, SitePlan
from PIL import Image
from textual.pilot import Pilot

from tests.support.site_bench import Bench

PROGRAM = str(Path(sysconfig.get_path("scripts")) / "flyball")
NAMESPACE = "research"
SIZE = (196, 28)
COLOURS = 256  # fewer merge the few green and blue words with the many white ones
FOLLOWED_SECONDS, LOOKS = 60.0, 0.5
PATIENCE_SECONDS = 180.0


def fill(site: Site) -> None:
    """Three caps over two rows, and jobs of which one is late and one waits."""
    api = site.cluster.api
    api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
    api.wait_for(path, lambda account: account is not None)
    names = site.cluster.node_names()
    for place, node in enumerate(names):
        api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {"row": "ab"[2 * place // len(names)]}}})
    full = site.plan.max_watts
    row_a, row_b = LabelSelector({"row": "a"}), LabelSelector({"row": "b"})
    for name, cap in (
        ("hall", PowerCapSpec(watts=int(full * 0.62))),
        ("row-a", PowerCapSpec(watts=int(full * 0.4), node_selector=row_a)),
        ("row-b", PowerCapSpec(watts=int(full * 0.3), node_selector=row_b, enforcement="Expected")),
    ):
        api.apply(api_object(POWER_CAPS.kind, name, cap))
    soon = (datetime.now(UTC) + timedelta(minutes=80)).strftime("%Y-%m-%dT%H:%M:%SZ")
    bench = Bench(site, NAMESPACE)
    energy = to_json(JobEnergy(budget_kilojoules=90_000))
    bench.submit("gpt2-wiki", gpus=(4, 16), iterations=60_000, model_class="gpt2", energy=energy)
    bench.submit("bert-large", gpus=(4, 8), iterations=40_000, model_class="bert", objective="Energy")
    bench.submit("resnet-a", gpus=(1, 8), iterations=200_000, batch=512, objective="Time", deadline=soon)
    bench.submit("resnet-b", gpus=(1, 8), iterations=100_000, batch=512)
    bench.submit("vgg-sweep", gpus=(2, 4), iterations=3000, model_class="vgg16", batch=128)
    bench.submit("huge", gpus=(32, 32), iterations=3000, model_class="vgg16", batch=1024)
    bench.submit("rigid-eval", gpus=(8, 8), iterations=20_000, batch=512, priority=-1)
    api.wait_for(
        ENERGY_AWARE_JOBS.path(NAMESPACE, "huge"),
        lambda job: job is not None and read_energy_aware_job(job).status.state == "Running",
        timeout_seconds=PATIENCE_SECONDS,
    )


async def follow(kubeconfig: Path, folder: Path) -> list[Path]:
    """The screens as SVG: jobs by their watts, the nodes, and why a job waits."""
    logging.basicConfig(handlers=[logging.NullHandler()], force=True)

    async def until_open(app: FlyballTop, pilot: Pilot[None]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not isinstance(app.screen, WhyScreen):  # noqa: ASYNC110 - the screen's own loop says nothing
                await asyncio.sleep(0.1)
        await pilot.pause(1.0)

    async with await ApiSession.connect(kubeconfig) as session, LiveCluster(session, NAMESPACE) as source:
        app = FlyballTop(source, LOOKS)
        async with app.run_test(size=SIZE) as pilot:
            await pilot.pause(FOLLOWED_SECONDS)
            await pilot.press(*"sssssss")
            shots = [Path(app.save_screenshot("terminal-top.svg", path=str(folder)))]
            await pilot.press("n")
            shots.append(Path(app.save_screenshot("terminal-nodes.svg", path=str(folder))))
            await pilot.press("j", "slash", *"rigid", "enter", "enter")
            await until_open(app, pilot)
            shots.append(Path(app.save_screenshot("terminal-why.svg", path=str(folder))))
    return shots


def as_png(svg: Path, output: Path, chromium: str) -> Path:
    """The picture as a headless browser draws it."""
    text = svg.read_text()
    width, height = (round(float(size)) for size in text.split('viewBox="0 0 ', 1)[1].split('"', 1)[0].split())
    page = svg.with_suffix(".html")
    page.write_text(f'<body style="margin:0"><img src="{svg.name}" width="{width}" height="{height}"></body>')
    picture = output / svg.with_suffix(".png").name
    arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    subprocess.run(
        [chromium, *arguments, f"--window-size={width},{height}", f"--screenshot={picture}", page.as_uri()],
        check=True,
        capture_output=True,
    )
    with Image.open(picture) as drawn:
        drawn.convert("RGB").quantize(COLOURS, Image.Quantize.FASTOCTREE).save(picture, optimize=True)
    return picture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs/images"), help="where the pictures go")
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    os.environ["HOSTNAME"] = (
        "flyball-operator-0"  # as the operator's pod would be called: no picture names this machine
    )
    plan = SitePlan(nodes=6, operator_arguments=("--replan-seconds", "2", "--status-interval-seconds", "1"))
    with tempfile.TemporaryDirectory() as work:
        with Site.start(plan, Path(work) / "site", print) as site:
            fill(site)
            shots = asyncio.run(follow(site.cluster.kubeconfig, Path(work)))
            for command in (["why", "rigid-eval", "-n", NAMESPACE], ["report", "--price", "0.25", "--co2", "380"]):
                print(f"$ kubectl flyball {' '.join(command)}", flush=True)
                subprocess.run([PROGRAM, *command, "--kubeconfig", str(site.cluster.kubeconfig)], check=True)
        for shot in shots:
            print(as_png(shot, options.output, chromium) if chromium else shutil.copy(shot, options.output))


if __name__ == "__main__":
    main()
