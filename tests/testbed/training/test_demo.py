"""What the demo of real training concludes from its journals, and the manifests that it submits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from flyball_api.energy_aware_job import read_energy_aware_job
from flyball_testbed.training.demo import conclude
from flyball_testbed.training.picture import Event
from flyball_testbed.training.run import SCRIPT, TEXT, Training

from tests.support.waiting import PATIENCE_SECONDS, wait_until


def journals(out: Path, loss: float = 2.0, samples: tuple[int, ...] = (4, 7)) -> None:
    """Two steps alone, and the same in one process and then in two, the second made once more after a kill."""
    runs = {
        "alone/1-00000": (1, [(1, [1, 2], 3.0), (2, [4, 7], 2.0)]),
        "elastic/000001.0-00000": (1, [(1, [1, 2], 3.0), (2, [4, 7], 2.0)]),
        "elastic/000002.0-00000": (2, [(2, [samples[0]], loss)]),
        "elastic/000002.0-00001": (2, [(2, [samples[1]], loss)]),
    }
    for name, (world_size, steps) in runs.items():
        path = out / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            {"iteration": iteration, "time": 1.0, "worldSize": world_size, "samples": list(trained), "loss": value}
            for iteration, trained, value in steps
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def referee(over: float = 0.0) -> dict[str, object]:
    return {"caps": {"cluster": {"max_limits_over_watts": over}}}


def test_the_same_training_is_said_to_be_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journals(tmp_path)
    assert conclude(tmp_path, [Event(1, "one rank killed")], referee()) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[:4] == [
        "2 steps in 2 starts",
        "sizes: 1, 2 GPUs",
        "made again after the kill: 1 steps",
        "samples: the same, in the same order",
    ]
    assert (tmp_path / "train-demo.png").exists()


@pytest.mark.parametrize(
    ("loss", "samples", "over", "words"),
    [
        (2.02, (4, 7), 0.0, "losses differ by at most 1.0e-02"),
        (2.0, (7, 4), 0.0, "samples: OTHERS"),
        (2.0, (4, 7), 3.0, "watts over a cap reported as enforced: 3"),
    ],
)
def test_what_differs_is_a_failure(
    tmp_path: Path,
    loss: float,
    samples: tuple[int, ...],
    over: float,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    journals(tmp_path, loss, samples)
    assert conclude(tmp_path, [], referee(over)) == 1
    assert words in capsys.readouterr().out


def test_the_job_runs_the_example_as_it_is(tmp_path: Path) -> None:
    manifest = Training("/usr/bin/python3", 100).manifest(tmp_path)
    given = {"uid": "u", "generation": 1, "creationTimestamp": "2026-11-22T10:00:00Z"}
    job = read_energy_aware_job({**manifest, "metadata": {**manifest["metadata"], **given}})
    assert job.spec.training.iterations == 100
    command = manifest["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command == ["/usr/bin/python3", "-m", "torch.distributed.run", str(SCRIPT), str(TEXT)]
    assert SCRIPT.exists()
    assert TEXT.exists()


def test_sigterm_ends_what_it_has_started(tmp_path: Path) -> None:
    """Also the training that is left alone, whose program would else go on for nobody."""
    pid_file = tmp_path / "pid"
    trainer = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    demo = (
        "import sys\n"
        "from flyball_testbed.training import demo, pytorch, run\n"
        "pytorch.get = lambda say: sys.executable\n"
        f"run.SCRIPT, run.TEXT = '-c', {trainer!r}\n"
        f"sys.argv = ['demo', '--output', {str(tmp_path / 'out')!r}]\n"
        "sys.exit(demo.main())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", demo], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: pid_file.exists() and pid_file.read_text() != "", "it trains")
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 143
        wait_until(lambda: not Path(f"/proc/{pid_file.read_text()}").exists(), "its training has ended, too")
    finally:
        process.kill()
        process.wait()
