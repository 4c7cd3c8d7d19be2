"""The settings of an operator process, each with its default and the reason for it; the command line is made from them.

The planner is imported where a setting is checked against it, so that `--help` does not wait for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from flyball_api.names import DEFAULT_NAMESPACE, GPU_RESOURCE
from flyball_kube.process.options import option

if TYPE_CHECKING:
    from flyball_api.energy.report import EnergyRates
    from flyball_planner.models.gpu import GpuModel
    from flyball_planner.snapshot import Consolidation

    from flyball_operator.meters.endpoints import Endpoint

# As the CRD has spec.gpus.resourceName.
EXTENDED_RESOURCE = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
GOVERN, OBSERVE = MODES = ("govern", "observe")
GPU_MODEL_SUFFIXES = (".json", ".yaml", ".yml")
MAX_GPU_MODEL_FILES = 256  # no cluster has so many products


@dataclass(frozen=True, slots=True)
class Settings:
    """Raises ValueError for a mode or a policy that does not exist, for values out of range, and for GPU model files that
    are missing or malformed, naming file and key.
    """

    kubeconfig: Path | None = field(
        default=None,
        metadata=option("Credentials; by default the pod's service account, else $KUBECONFIG."),
    )
    namespace: str = field(
        default=DEFAULT_NAMESPACE,
        metadata=option("Where the leader lease lives; the agents' --namespace must be the same."),
    )
    mode: str = field(
        default=GOVERN,
        metadata=option("govern; or observe: plan, and say of caps and jobs what would be done, without doing it."),
    )
    policy: str = field(
        default="powerflow-strict",  # the planner's DEFAULT_POLICY, which a test holds it against
        metadata=option("How GPUs and watts are shared out; every name of docs/operator.md."),
    )
    # A folder stands for the files that it has at the start: a mounted ConfigMap may change at any moment, a plan must not.
    gpu_model_files: tuple[Path, ...] = field(
        default=(),
        metadata=option(
            "A GPU model as `flyball calibrate` writes it, or a folder of such files (a mounted ConfigMap, say), instead "
            "of the catalogue's. May be repeated, the last one of a product counts; the variable takes PATH:PATH.",
            name="gpu_model",
            variables=("FLYBALL_GPU_MODELS",),
        ),
    )
    gpu_resources: tuple[str, ...] = field(
        default=(GPU_RESOURCE,),
        metadata=option(
            "An extended resource whose units are GPUs; a job that asks for another gets none. May be repeated; the "
            "variable takes NAME NAME.",
            name="gpu_resource",
            variables=("FLYBALL_GPU_RESOURCES",),
        ),
    )
    metrics_port: int = field(
        default=9400,
        metadata=option(
            "Prometheus metrics, on every address; 0: any free port (in the log); -1: none.", minimum=-1, maximum=65535
        ),
    )
    probe_port: int = field(
        default=8080,
        metadata=option("Probes, /healthz and /readyz, on every address; 0: none.", minimum=0, maximum=65535),
    )
    # Must outlast a change of leaders.
    grant_lease_seconds: int = field(
        default=60,
        metadata=option("How long node agents hold their grants without a sign of any operator.", minimum=5),
    )
    # As Kubernetes' own controllers.
    leader_lease_seconds: int = field(
        default=15, metadata=option("A leader that cannot renew for this long has lost.", minimum=3)
    )
    leader_renew_seconds: float = field(default=3.0, metadata=option("How often the leader renews.", minimum=0.2))
    plan_deadline_seconds: float = field(
        default=10.0,
        metadata=option("A plan that takes longer is given up; the old one stands, within every cap.", minimum=0.1),
    )
    # Plans depend on what changes slowly too: progress, deadlines.
    replan_seconds: float = field(default=10.0, metadata=option("Plan again at least this often.", minimum=0.5))
    coalesce_seconds: float = field(
        default=0.02,
        metadata=option("Everything that happens within this time is answered by one cycle.", minimum=0.0, maximum=1.0),
    )
    status_interval_seconds: float = field(
        default=5.0,
        metadata=option("Figures that move by themselves are written to statuses at most this often.", minimum=0.2),
    )
    # An agent acknowledges a grant within a second.
    acknowledge_timeout_seconds: float = field(
        default=10.0,
        metadata=option("A node that owes an acknowledgement for this long is planned around.", minimum=1.0),
    )
    # An agent reports at least every 30 s: two of its reports may be lost on the way.
    report_timeout_seconds: float = field(
        default=75.0,
        metadata=option(
            "A node whose agent reports nothing for this long counts at its GPUs' largest limits.", minimum=1.0
        ),
    )
    # A reboot could have gone unseen; an informer's watch is renewed every minute.
    stale_after_seconds: float = field(
        default=90.0,
        metadata=option(
            "No grant is raised while the local copy of the API's objects is older than this.", minimum=1.0
        ),
    )
    # As long as Kubernetes lets pods stay on such a node.
    evacuate_after_seconds: float = field(
        default=300.0,
        metadata=option(
            "Jobs leave a node that has not been ready for this long, unless half of all nodes are not.", minimum=1.0
        ),
    )
    observe_jobs: bool = field(
        default=False,
        metadata=option(
            "Only observe all jobs, as by the label flyball.dev/mode=observe: they run, caps hold them, their clocks are "
            "left alone, and what governing them would save is reported."
        ),
    )
    brakes: bool = field(
        default=True,
        metadata=option(
            "Lower a cap's nodes by one brake before their grants follow; without, each by its grant alone. "
            "Emergencies are obeyed in any case."
        ),
    )
    # As Kubernetes' own Jobs.
    first_pause_seconds: float = field(
        default=10.0,
        metadata=option(
            "The pause before a job is started again that has failed or did not start; each further one in a row is "
            "twice as long, up to 60 times this.",
            minimum=0.01,
        ),
    )
    # Large images take minutes to arrive.
    startup_timeout_seconds: float = field(
        default=600.0,
        metadata=option(
            "A job whose pods are not ready after this gives its GPUs and watts to others, and is tried again later; "
            "its spec.startupTimeoutSeconds comes first.",
            minimum=1.0,
        ),
    )
    restart_seconds: float = field(
        default=30.0, metadata=option("What a resize or a migration costs a job.", minimum=0.0)
    )
    guard_fraction: float = field(
        default=0.05,
        metadata=option(
            "How far a job's power limit stands above its predicted draw, as a share of it.", minimum=0.0, maximum=1.0
        ),
    )
    exploration_permille: int = field(
        default=0,
        metadata=option(
            "Of each job's running time, how much it may spend at lower clocks than planned, for its model to be learned.",
            unit="permille",
            minimum=0,
            maximum=100,
        ),
    )
    profiled_power_limits: int = field(
        default=0,
        metadata=option(
            "How many power limits below what it draws a job of which nothing is known is tried at, each for two minutes "
            "at the most; it then runs at the cheapest.",
            unit="limits",
            minimum=0,
            maximum=8,
        ),
    )
    meter_endpoints_file: Path | None = field(
        default=None,
        metadata=option(
            "A YAML file of the Prometheus servers that PowerCaps' meters may name (docs/operator.md).",
            name="meter_endpoints",
        ),
    )
    meter_directory: Path | None = field(
        default=None,
        metadata=option("The folder of the files that PowerCaps' meters may name.", name="meter_dir"),
    )
    # The operator powers nothing off: moving jobs together pays only where something else does (an autoscaler, say).
    empty_node_hold_seconds: float = field(
        default=0.0,
        metadata=option(
            "For how long a node that jobs leave stays off, where something powers it off; 0: nobody moves.",
            minimum=0.0,
        ),
    )
    empty_node_watts: float = field(
        default=0.0, metadata=option("What such a node draws beside its GPUs.", minimum=0.0)
    )
    report_seconds: float = field(
        default=60.0,
        metadata=option("The day's EnergyReport is written this often.", minimum=1.0),
    )
    report_days: int = field(
        default=400,
        metadata=option("EnergyReports of so many days are kept.", unit="days", minimum=1, maximum=3660),
    )
    cost_per_kilowatt_hour: float = field(
        default=0.0,
        metadata=option(
            "What a kilowatt-hour costs, in your currency; EnergyReports keep it. 0: not known.",
            unit="currency",
            minimum=0.0,
            maximum=1e6,
        ),
    )
    co2_grams_per_kilowatt_hour: float = field(
        default=0.0,
        metadata=option(
            "Grams of CO2 a kilowatt-hour; EnergyReports keep it. 0: not known.", unit="grams", minimum=0.0, maximum=1e6
        ),
    )
    signal_file: Path | None = field(
        default=None,
        metadata=option(
            "A CSV of the grid's price or CO2 ahead (docs/operator.md): jobs with spec.flexibleUntil wait for less of it."
        ),
    )
    planner_url: str = field(
        default="",
        metadata=option(
            "The planner service (`flyball planner serve`), as http://flyball-planner: of what jobs measure of their "
            "pipelines it makes the plans. Default: nobody does."
        ),
    )
    planner_token_file: Path | None = field(
        default=None, metadata=option("The file of the bearer token that it wants, read for each plan.")
    )
    # Pods mount their own folder of it, which takes a hostPath.
    training_socket_directory: str = field(
        default="",
        metadata=option(
            "The agents' --socket-dir: pods then get FLYBALL_SOCKET, by a hostPath volume. Default: no socket.",
            name="training_socket_dir",
        ),
    )
    training_socket_resource: str = field(
        default="",
        metadata=option(
            "What pods ask for to get FLYBALL_SOCKET without a hostPath: flyball.dev/socket, where the agents run with "
            "--socket-plugin-dir. Default: no socket that way."
        ),
    )

    def __post_init__(self) -> None:
        from flyball_planner.policies.registry import policy_named, policy_names
        from flyball_planner.snapshot import Consolidation

        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r} is unknown (govern or observe)")
        if not self.gpu_resources or len(set(self.gpu_resources)) < len(self.gpu_resources):
            raise ValueError(f"GPU resources {self.gpu_resources}: name at least one, and each only once")
        for name in self.gpu_resources:
            if not EXTENDED_RESOURCE.fullmatch(name):
                raise ValueError(f"GPU resource {name!r}: no name of an extended resource, as nvidia.com/gpu is one")
        traits = policy_named(self.policy).traits
        if self.empty_node_hold_seconds and not traits.empties_nodes:
            emptying = " or ".join(name for name in policy_names() if policy_named(name).traits.empties_nodes)
            raise ValueError(f"nodes are emptied under {emptying} only, and the policy is {self.policy}")
        Consolidation(self.empty_node_watts, self.empty_node_hold_seconds)
        try:
            files = tuple(file for path in self.gpu_model_files for file in _gpu_model_files(path))
            if len(files) > MAX_GPU_MODEL_FILES:
                raise ValueError(f"{len(files)} GPU model files were given, and at most {MAX_GPU_MODEL_FILES} are read")
            object.__setattr__(self, "gpu_model_files", files)  # the documented way where a dataclass is frozen
            _ = self.gpu_models
        except OSError as error:
            raise ValueError(f"GPU model file {error.filename}: {error.strerror}") from error
        if self.planner_url and not self.planner_url.startswith(("http://", "https://")):
            raise ValueError(f"planner URL {self.planner_url!r}: it begins with http:// or https://")
        try:
            _ = self.meter_endpoints
        except OSError as error:
            raise ValueError(f"meter endpoints {error.filename}: {error.strerror}") from error

    @property
    def gpu_models(self) -> Mapping[str, GpuModel]:
        """Every GPU model that is known, by product label."""
        from flyball_planner.models.gpu import catalogue

        return catalogue(*self.gpu_model_files)

    @property
    def meter_endpoints(self) -> Mapping[str, Endpoint]:
        """The servers that meters are asked of, by name."""
        from flyball_operator.meters.endpoints import read_endpoints

        return {} if self.meter_endpoints_file is None else read_endpoints(self.meter_endpoints_file)

    @property
    def energy_rates(self) -> EnergyRates:
        """What a kilowatt-hour costs and emits, as EnergyReports have it."""
        from flyball_api.energy.report import EnergyRates

        cost, grams = self.cost_per_kilowatt_hour, self.co2_grams_per_kilowatt_hour
        return EnergyRates(round(cost * 1e6) if cost else None, round(grams * 1e3) if grams else None)

    @property
    def consolidation(self) -> Consolidation | None:
        """What moving jobs together saves; None where they are left where they are."""
        from flyball_planner.snapshot import Consolidation

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
