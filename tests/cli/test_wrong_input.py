"""What is said of words and numbers that a command does not take: before anything is asked of a cluster or started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import flyball


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("release pod x", "'pod' is none of cap (pcap), node (gpun)"),
        ("release job x", "only a cap or a node can be released (jobs: kubectl delete)"),
        ("report --price -1", "'--price': -1 is too small; wanted at least 0"),
        ("report --co2 -4", "'--co2': -4 is too small; wanted at least 0"),
        ("report --pue 0.5", "'--pue': 0.5 is too small; wanted at least 1"),
        ("agent release --node-name n --journal-dir /missing", "'--journal-dir': dir '/missing' does not exist"),
        ("agent resume --node-name n --journal-dir /missing", "'--journal-dir': dir '/missing' does not exist"),
        ("devcluster up --product H1000", "--product H1000 is none of the GPUs that are simulated: NVIDIA-A100"),
    ],
)
def test_it_is_named_with_what_would_be_right(arguments: str, said: str) -> None:
    result = flyball(*arguments.split())
    assert result.exit_code in (1, 2)
    assert said in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("arguments", "said", "status"),
    [
        ("simulate --trace {file} --policy fifo --gpus 8", "flyball simulate: ", 2),
        ("compare --trace {file} --policies fifo --gpus 8 --output {folder}", "flyball compare: ", 2),
        ("calibrate {file} --limits 100,250,250 --output {folder}/model.yaml", "flyball calibrate: ", 2),
        ("frontier --profile {file} --microbatches 4", "flyball frontier: ", 2),
        ("schedule-plot {file} --output {folder}/plot.png", "flyball schedule-plot: ", 2),
        ("report --kubeconfig {folder}/none", "flyball report: ", 1),
        ("top --kubeconfig {folder}/none", "flyball top: ", 1),
        ("operator run --kubeconfig {folder}/none", "flyball operator run: ", 1),
        ("agent release --node-name n --journal-dir {folder} --wait-seconds 0", "flyball agent release: ", 1),
        ("devcluster kubeconfig --name none", "flyball devcluster kubeconfig: ", 1),
        ("support-bundle --output {file}", "flyball support-bundle: ", 1),
    ],
)
def test_what_a_command_cannot_do_is_one_line_behind_its_name(
    arguments: str, said: str, status: int, tmp_path: Path
) -> None:
    file = tmp_path / "input.csv"
    file.write_text("nothing that can be read\n")
    result = flyball(*arguments.format(file=file, folder=tmp_path).split())
    assert result.exit_code == status, result.output
    (line,) = result.output.splitlines()
    assert line.startswith(said)
