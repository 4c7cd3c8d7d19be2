"""What is said of words and numbers that a command does not take: before anything is asked of a cluster or started."""

from __future__ import annotations

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
