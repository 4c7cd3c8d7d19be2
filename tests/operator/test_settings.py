"""Settings that cannot be are refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from flyball_cli.components.operator import register
from flyball_kube import credentials
from flyball_kube.process import logs
from flyball_operator import main
from flyball_operator.power.nodes.gpu_facts import KnownGpus
from flyball_operator.power.nodes.info import read_nodes
from flyball_operator.settings import Settings
from flyball_planner.models.gpu import MAX_FILE_BYTES, catalogue
from flyball_planner.policies.registry import policy_names
from flyball_planner.snapshot import Consolidation
from typer.testing import CliRunner

from tests.support.operator_objects import node_view


@pytest.mark.parametrize("policy", sorted({"powerflow-strict", "tiresias+zeus", *policy_names()}))
def test_every_policy_can_be_chosen(policy: str) -> None:
    assert Settings(policy=policy).policy == policy


def test_an_unknown_policy_is_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"policy 'fair-share' is unknown; there is .*fifo"):
        Settings(policy="fair-share")
    with pytest.raises(ValueError, match="price chooses its clocks itself"):
        Settings(policy="price+zeus")


def test_nodes_are_emptied_only_where_that_is_asked_for() -> None:
    assert Settings().consolidation is None
    assert Settings(empty_node_hold_seconds=600.0, empty_node_watts=350.0).consolidation == Consolidation(350.0, 600.0)
    with pytest.raises(ValueError, match=r"empty_seconds is -1\.0"):
        Settings(empty_node_hold_seconds=-1.0)
    with pytest.raises(ValueError, match="powerflow-strict only, and the policy is fifo"):
        Settings(policy="fifo", empty_node_hold_seconds=600.0)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((), "name at least one"),
        (("nvidia.com/gpu", "nvidia.com/gpu"), "each only once"),
        (("gpu",), "'gpu': no name of an extended resource"),
        (("Example.com/gpu",), "no name of an extended resource"),
    ],
)
def test_gpu_resources_that_cannot_be_are_refused(names: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Settings(gpu_resources=names)
    assert Settings(gpu_resources=("nvidia.com/gpu", "example.com/gpu.2")).gpu_resources[1] == "example.com/gpu.2"


# --- GPU models from files ----------------------------------------------------------------------------------------


def board(folder: Path, name: str, product: str = "Unheard-Of", idle: str = "33") -> Path:
    path = folder / name
    path.write_text(
        f"product: {product}\nlimits: [100, 300, 250]\nidle: {idle}\nclocks: [300, 1500, 15]\nknee: 1200\nslope: 0.7\n",
        encoding="utf-8",
    )
    return path


def test_files_stand_over_the_catalogue_and_the_last_counts(tmp_path: Path) -> None:
    files = (board(tmp_path, "a.yaml"), board(tmp_path, "b.yaml", idle="44"), board(tmp_path, "c.yaml", "NVIDIA-A40"))
    models = Settings(gpu_model_files=files).gpu_models
    assert models["Unheard-Of"].idle_power_watts == 44
    assert models["NVIDIA-A40"].knee_megahertz == 1200
    assert Settings().gpu_models == catalogue()
    assert models.keys() == catalogue().keys() | {"Unheard-Of"}


def test_a_folder_stands_for_its_files_as_a_mounted_config_map_has_them(tmp_path: Path) -> None:
    mounted = tmp_path / "..2026_11_21"
    mounted.mkdir()
    board(mounted, "a.yaml")
    board(mounted, "b.json", idle="44")
    (tmp_path / "..data").symlink_to(mounted)
    for name in ("a.yaml", "b.json"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    (tmp_path / ".hidden.yaml").write_text("no model", encoding="utf-8")
    (tmp_path / "README").write_text("no model", encoding="utf-8")
    settings = Settings(gpu_model_files=(tmp_path,))
    assert settings.gpu_model_files == (tmp_path / "a.yaml", tmp_path / "b.json")
    assert settings.gpu_models["Unheard-Of"].idle_power_watts == 44
    board(mounted, "a.yaml", "Another")
    assert "Another" not in settings.gpu_models, "what is planned with is what was checked at the start"


def test_files_that_are_no_gpu_models_are_refused_by_file_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Settings(gpu_model_files=(path,))

    path = tmp_path / "board.yaml"
    refused(path, r"board\.yaml: No such file")
    refused(
        board(tmp_path, "board.yaml", idle="low"), r"board\.yaml: Unheard-Of: `idle` is 'low', and must be a number"
    )
    path.write_text("product: Half\n", encoding="utf-8")
    refused(path, r"board\.yaml: Half: .*missing \['clocks', 'idle', 'knee', 'limits', 'slope'\]")
    path.write_text("#" * (MAX_FILE_BYTES + 1), encoding="utf-8")
    refused(path, r"board\.yaml: larger than")
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(empty, r"empty: has no file that ends in \.json, \.yaml, \.yml")
    (empty / "models.yaml").mkdir()
    refused(empty, r"models\.yaml: Is a directory")
    monkeypatch.setattr("flyball_operator.settings.MAX_GPU_MODEL_FILES", 1)
    many = tmp_path / "many"
    many.mkdir()
    board(many, "a.yaml")
    board(many, "b.yaml")
    refused(many, "2 GPU model files were given, and at most 1")


def command() -> typer.Typer:
    app = typer.Typer()
    register(app)
    return app


def test_the_command_takes_files_by_option_or_by_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a node of that product is then planned with what the file says."""
    ran: list[Settings] = []
    monkeypatch.setattr(main, "run", ran.append)
    monkeypatch.setattr(logs, "configure_logging", lambda *_: None)  # the runner's stderr ends with it
    monkeypatch.setattr(credentials, "load_configuration", lambda *_: None)  # no cluster is needed to read options
    first, second = board(tmp_path, "a.yaml"), board(tmp_path, "b.yaml", "Another")
    arguments: dict[str, Any] = {"args": ["operator", "run", "--log-level", "ERROR"], "env": {}}
    by_option = {**arguments, "args": [*arguments["args"], "--gpu-model", str(first), "--gpu-model", str(second)]}
    by_environment = {**arguments, "env": {"FLYBALL_GPU_MODELS": f"{first}:{second}"}}
    for given in (arguments, by_option, by_environment):
        result = CliRunner().invoke(command(), **given)
        assert result.exit_code == 0, result.output
    assert [settings.gpu_model_files for settings in ran] == [(), (first, second), (first, second)]
    nodes = read_nodes([node_view("a", 8, product="Another")], {}, [], frozenset(), known=KnownGpus(ran[1].gpu_models))
    assert nodes["a"].gpu_model == ran[1].gpu_models["Another"]


def test_the_command_says_which_file_is_wrong_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Settings] = []
    monkeypatch.setattr(main, "run", ran.append)
    monkeypatch.setattr(logs, "configure_logging", lambda *_: None)  # the runner's stderr ends with it
    wrong = board(tmp_path, "a.yaml", idle="low")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command(), ["operator", "run", "--gpu-model", wrong.name])
    assert result.exit_code == 2
    assert "a.yaml: Unheard-Of: `idle` is 'low'" in " ".join(result.output.split())
    assert ran == []


def test_a_planner_that_is_no_url_is_refused() -> None:
    with pytest.raises(ValueError, match="planner URL 'flyball-planner': it begins with http"):
        Settings(planner_url="flyball-planner")
