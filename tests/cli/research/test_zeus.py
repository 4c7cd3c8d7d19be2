"""`flyball zeus` as a user meets it: what it prints, what it writes, and what it says of bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import flyball

PNG = b"\x89PNG"


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A folder like the artifact's, with one workload of three batch sizes."""
    folder = tmp_path / "tables"
    folder.mkdir()
    training = ["dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch"]
    power = ["dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power"]
    for size, epochs in ((256, (9, 8, 9)), (512, (5, 5, 6)), (1024, (6, 7, 7))):
        training += [f"movielens-1m,ncf,{size},adam,0.1,{run},0.41,{needed}" for run, needed in enumerate(epochs)]
        power += [
            f"movielens-1m,ncf,{size},adam,{watts},{40 + 9000 / size + 2000 / watts},{watts * 0.9}"
            for watts in (100, 150, 200)
        ]
    (folder / "summary_train.csv").write_text("\n".join(training))
    (folder / "summary_power_v100.csv").write_text("\n".join(power))
    (folder / "summary_power_p100.csv").write_text("\n".join(power))
    return folder


@pytest.mark.slow
def test_a_replay_writes_its_report_and_pictures(tables: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    arguments = ["zeus", "replay", str(tables), "--workload", "NeuMF", "--seeds", "2", "--carry-from", "p100"]
    result = flyball(*arguments, "--output", str(output))
    assert result.exit_code == 0, result.output
    assert "NeuMF" in result.output
    assert "cumulative regret" in result.output
    report = json.loads((output / "zeus-v100.json").read_text())
    (workload,) = report["workloads"]
    assert workload["optimum"]["batch_size"] == 512
    assert workload["policies"]["Zeus"]["energy_saved"] > 0
    assert len(workload["policies"]["Grid search"]["final_regret_joules"]) == 2
    assert [carried["workload"] for carried in report["carried"]] == ["NeuMF"]
    for picture in ("savings", "regret", "paths"):
        assert (output / f"zeus-v100-{picture}.png").read_bytes().startswith(PNG)


def test_a_power_limit_is_chosen_and_the_rest_shown(tmp_path: Path) -> None:
    profile = tmp_path / "profile.csv"
    profile.write_text("power_limit_watts,time_seconds,energy_joules\n250,10,2200\n200,10.4,1900\n150,12,1700\n")
    shown = flyball("zeus", "power-limit", str(profile), "--selector", "slowdown")
    assert shown.exit_code == 0, shown.output
    assert "200 W saves 13.6% of the energy for +4.0% time" in shown.output
    answer = flyball("zeus", "power-limit", str(profile), "--selector", "energy", "--json")
    assert json.loads(answer.output)["power_limit_milliwatts"] == 150_000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["replay", "{tables}", "--workload", "GPT"], "is not one of DeepSpeech2"),
        (["replay", "{tables}", "--gpu", "h100"], "summary_power_h100.csv"),
        (["power-limit", "{tables}/summary_train.csv"], "wanted"),
    ],
)
def test_bad_input_is_named(tables: Path, arguments: list[str], says: str) -> None:
    result = flyball("zeus", *(a.format(tables=tables) for a in arguments))
    assert result.exit_code == 2
    assert says in " ".join(result.output.split()) or says in result.output.replace("\n", "")


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("300W,10,2500", "line 3: power_limit_watts is '300W': wanted a number above 0, without a unit"),
        ("-300,10,2500", "line 3: power_limit_watts is '-300': wanted a number above 0"),
        ("300,10,nan", "line 3: energy_joules is 'nan': wanted a number above 0"),
        ("300,10", "line 3: energy_joules is None: wanted a number above 0"),
    ],
)
def test_a_wrong_number_of_a_profile_is_named_with_its_column(tmp_path: Path, row: str, says: str) -> None:
    profile = tmp_path / "profile.csv"
    profile.write_text(f"power_limit_watts,time_seconds,energy_joules\n250,11,2000\n{row}\n")
    result = flyball("zeus", "power-limit", str(profile))
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("table", "old", "new", "message"),
    [
        ("summary_train.csv", "ncf,512", "ncf,x", "training table, line 5: batch_size 'x' must be a whole number"),
        ("summary_train.csv", "0.41,9", "0.41,soon", "training table, line 2: target_epoch 'soon' must be a finite"),
        ("summary_power_v100.csv", "average_power", "power", "power table: no column average_power"),
        ("summary_power_v100.csv", ",100,", ",-100,", "power table, line 2: power_limit '-100' must be a whole"),
        ("summary_power_v100.csv", "movielens", "netflix", "NeuMF: no row of both tables has dataset movielens-1m"),
        ("summary_train.csv", None, "", "training table: no column dataset"),
    ],
)
def test_a_wrong_table_is_said_in_one_line(tables: Path, table: str, old: str | None, new: str, message: str) -> None:
    text = (tables / table).read_text()
    (tables / table).write_text(new if old is None else text.replace(old, new))
    result = flyball("zeus", "replay", str(tables), "--workload", "NeuMF", "--seeds", "1")
    assert (result.exit_code, len(result.output.strip().splitlines())) == (2, 1)
    assert message in result.output


def test_an_output_that_is_a_file_is_refused_before_the_replay(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flyball_studies.zeus.study.replay_seed", None)  # a replay would end in a traceback
    (tmp_path / "taken").write_text("")
    for output in (tmp_path / "taken", tmp_path / "taken" / "below"):
        result = flyball("zeus", "replay", str(tables), "--output", str(output))
        assert (result.exit_code, len(result.output.strip().splitlines())) == (2, 1)
        assert "taken is a file; wanted a folder" in result.output


@pytest.mark.slow
def test_another_seed_draws_otherwise_and_the_same_one_the_same(tables: Path, tmp_path: Path) -> None:
    def regrets(seed: int, count: int) -> list[float]:
        output = tmp_path / f"{seed}-{count}"
        arguments = ["zeus", "replay", str(tables), "--workload", "NeuMF", "--seed", str(seed), "--seeds", str(count)]
        result = flyball(*arguments, "--output", str(output))
        assert result.exit_code == 0, result.output
        report = json.loads((output / "zeus-v100.json").read_text())
        assert (report["first_seed"], report["seeds"]) == (seed, count)
        found: list[float] = report["workloads"][0]["policies"]["Zeus"]["final_regret_joules"]
        return found

    assert regrets(7, 1) == regrets(6, 2)[1:]
    assert regrets(7, 1) != regrets(6, 1)


def test_iterations_count_where_the_file_does_not_say(tmp_path: Path) -> None:
    profile = tmp_path / "profile.csv"
    profile.write_text("power_limit_watts,time_seconds,energy_joules,iterations\n250,10,2200,\n200,10.4,1900,20\n")
    shown = flyball("zeus", "power-limit", str(profile), "--iterations", "10")
    assert shown.exit_code == 0, shown.output
    assert [line.split()[1] for line in shown.output.splitlines() if line.split()[:1] in (["250"], ["200"])] == [
        "1000.0",
        "520.0",
    ]
