"""What an operator process can be told, in one place, with the reason for each default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flyball_planner.cluster import Consolidation
from flyball_planner.gpu_models import GpuModel, catalogue
from flyball_planner.plan import STRICT_POWERFLOW, check_policy

from flyball_operator.names import DEFAULT_NAMESPACE

GPU_MODEL_SUFFIXES = (".json", ".yaml", ".yml")
MAX_GPU_MODEL_FILES = 256  # no cluster has so many products


@dataclass(frozen=True, slots=True)
class Settings:
    """All durations in seconds. Raises ValueError for a policy that does not exist, for figures that cannot be, and for GPU
    model files that are not, naming file and key.
    """

    namespace: str = DEFAULT_NAMESPACE
    kubeconfig: Path | None = None
    policy: str = STRICT_POWERFLOW
    # GPU models as `flyball calibrate` writes them, beside the catalogue's and over them; the later file counts. A folder
    # stands for the files that it has at the start: a mounted ConfigMap may change at any moment, a plan must not.
    gpu_model_files: tuple[Path, ...] = ()
    # As Kubernetes' own controllers: a leader that cannot renew for 15 s has lost.
    leader_lease_seconds: int = 15
    leader_renew_seconds: float = 3.0
    # How long an agent holds its grant without a sign of any leader; must outlast a change of leaders.
    grant_lease_seconds: int = 60
    plan_deadline_seconds: float = 10.0
    # Everything that happens within this window is answered by one cycle.
    coalesce_seconds: float = 0.02
    # Plans depend on what changes slowly too (progress, deadlines): plan again at least this often.
    replan_seconds: float = 10.0
    # An agent answers a grant within a second; one that takes this long is planned around.
    acknowledge_timeout_seconds: float = 10.0
    # Older local copies than this raise nothing: a reboot could have gone unseen.
    stale_after_seconds: float = 90.0
    status_interval_seconds: float = 5.0
    restart_seconds: float = 30.0
    guard_fraction: float = 0.05
    # Where on their nodes agents serve training processes; pods mount their own folder of it, which takes a hostPath.
    training_socket_directory: str = ""
    metrics_port: int = 9400
    probe_port: int = 8080
    # The operator powers nothing off: moving jobs together pays only where something else does (an autoscaler, say).
    empty_node_hold_seconds: float = 0.0
    empty_node_watts: float = 0.0

    def __post_init__(self) -> None:
        check_policy(self.policy)
        if self.empty_node_hold_seconds and self.policy != STRICT_POWERFLOW:
            raise ValueError(f"nodes are emptied under {STRICT_POWERFLOW} only, and the policy is {self.policy}")
        Consolidation(self.empty_node_watts, self.empty_node_hold_seconds)
        try:
            files = tuple(file for path in self.gpu_model_files for file in _gpu_model_files(path))
            if len(files) > MAX_GPU_MODEL_FILES:
                raise ValueError(f"{len(files)} GPU model files were given, and at most {MAX_GPU_MODEL_FILES} are read")
            object.__setattr__(self, "gpu_model_files", files)  # the documented way where a dataclass is frozen
            _ = self.gpu_models
        except OSError as error:
            raise ValueError(f"GPU model file {error.filename}: {error.strerror}") from error

    @property
    def gpu_models(self) -> Mapping[str, GpuModel]:
        """Every GPU model that is known, by product label."""
        return catalogue(*self.gpu_model_files)

    @property
    def consolidation(self) -> Consolidation | None:
        """What moving jobs together saves; None where they are left where they are."""
        if not self.empty_node_hold_seconds:
            return None
        return Consolidation(self.empty_node_watts, self.empty_node_hold_seconds)


def _gpu_model_files(path: Path) -> list[Path]:
    """The file itself, or a folder's files by name, without the hidden ones that a mounted ConfigMap has."""
    if not path.is_dir():
        return [path]
    found = sorted(
        file for file in path.iterdir() if file.suffix in GPU_MODEL_SUFFIXES and not file.name.startswith(".")
    )
    if not found:
        raise ValueError(f"GPU model folder {path}: has no file that ends in {', '.join(GPU_MODEL_SUFFIXES)}")
    return found
