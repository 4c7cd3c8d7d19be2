"""PowerCap: how many watts a set of nodes may draw, and how that is held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from flyball_api.grant import MAX_HOLD_SECONDS
from flyball_api.names import ANNOTATION_RELEASE
from flyball_api.reading import (
    ApiStruct,
    Count,
    InvalidObject,
    Name,
    ObjectMeta,
    Time,
    read_metadata,
    read_spec,
    read_status,
)
from flyball_api.values.conditions import StoredCondition
from flyball_api.values.label_selector import LabelSelector

KIND = "PowerCap"
# For how long a cap is held after its deletion.
DEFAULT_RELEASE_SECONDS = 600


class CapSchedule(ApiStruct, frozen=True):
    """A time with a lower cap: again and again from `cron` on (five fields, in `time_zone`, an IANA name; UTC without one)
    for `duration_seconds`, or once from `start` to `end`."""

    name: str
    watts: Count
    cron: str | None = None
    duration_seconds: Count | None = None
    time_zone: str | None = None
    start: Time | None = None
    end: Time | None = None


class CapNextChange(ApiStruct, frozen=True):
    """When a cap's schedule changes it next, and to how many watts."""

    time: Time
    watts: Count
    schedule: str | None = None


class EnergyBudget(ApiStruct, frozen=True):
    """The energy that the GPUs under a cap may use in each period; periods begin at multiples since 1970-01-01 UTC."""

    kilojoules: Count
    period_seconds: Count


class PrometheusMeter(ApiStruct, frozen=True):
    """A query to one of the operator's endpoints, by its name; `time_query` asks for the time of its oldest sample."""

    endpoint: str
    query: str
    time_query: str | None = None


class CapMeter(ApiStruct, frozen=True):
    """A meter of all that a cap covers, read from `prometheus` or a `file`, and what is made of it; seconds, and permille
    of the cap."""

    prometheus: PrometheusMeter | None = None
    file: str | None = None
    interval_seconds: Count = 2
    settle_seconds: Count = 10
    target_permille: Count = 950
    release_permille: Count = 900
    breach_seconds: Count = 5
    silent_seconds: Count = 30
    silent_permille: Count = 900
    release_seconds: Count = 60

    def __post_init__(self) -> None:
        if (self.prometheus is None) == (self.file is None):
            raise ValueError("a meter is read from exactly one of prometheus and file")
        if not self.release_permille < self.target_permille <= 1000:
            raise ValueError("a meter's releasePermille is below its targetPermille, which is at most 1000")
        if self.interval_seconds < 1:
            raise ValueError("a meter is read every second at most: intervalSeconds is at least 1")

    @property
    def source(self) -> str:
        """What is read, for people."""
        return f"file {self.file}" if self.prometheus is None else f"Prometheus {self.prometheus.endpoint}"


class PodWeight(ApiStruct, frozen=True):
    """The weight of each GPU of the pods with such labels, at most their namespace's."""

    selector: LabelSelector
    permille: Count


class ForeignWeight(ApiStruct, frozen=True):
    """The weight of each GPU that pods outside Flyball hold in one namespace, in thousandths of any other GPU's, and the
    smaller ones of some of its pods."""

    namespace: Name
    permille: Count
    pods: tuple[PodWeight, ...] = ()


class PowerCapSpec(ApiStruct, frozen=True):
    """PowerCap.spec, which people write; exactly one of `watts` and `permille_of_max` is set."""

    watts: Count | None = None
    permille_of_max: Count | None = None
    node_selector: LabelSelector = LabelSelector()
    enforcement: Literal["Hard", "Expected"] = "Hard"
    on_infeasible: Literal["Pause", "FloorOnly"] = "Pause"
    static_overhead_watts: Count = 0
    schedule: tuple[CapSchedule, ...] = ()
    energy_budget: EnergyBudget | None = None
    ramp_watts_per_second: Count | None = None
    failsafe: Literal["Minimum", "Limit", "Hold"] | None = None
    failsafe_watts_per_gpu: Count | None = None
    failsafe_hold_seconds: Annotated[int, Meta(ge=0, le=MAX_HOLD_SECONDS)] | None = None
    meter: CapMeter | None = None
    foreign_pods: Literal["Reserve", "Limit"] = "Limit"
    foreign_weights: tuple[ForeignWeight, ...] = ()
    release_seconds: Count = DEFAULT_RELEASE_SECONDS
    reserve_nodes: Count = 0

    def __post_init__(self) -> None:
        if (self.watts is None) == (self.permille_of_max is None):
            raise ValueError("a cap needs exactly one of watts and permilleOfMax")

    @property
    def expected(self) -> bool:
        """The cap adds up predicted draw, not limits."""
        return self.enforcement == "Expected"


class CapBreach(ApiStruct, frozen=True):
    """The time that more was measured than the cap allows, now (without `until`) or the last time."""

    since: Time
    until: Time | None = None
    watts: Count = 0
    joules: Count = 0


class CapEnergyPeriod(ApiStruct, frozen=True):
    """The present period of a cap's energy budget; `charged_until`: what was drawn later is not in it yet.

    `counted_millijoules` is the sum of the GPUs' energy counters up to which it is charged, `counted_of` tells which those
    are: of the same ones, whatever the sum is by now above that has yet to be charged.
    """

    start: Time
    consumed_kilojoules: Count = 0
    charged_until: Time | None = None
    counted_millijoules: Count | None = None
    counted_of: str | None = None


class CapMeasured(ApiStruct, frozen=True):
    """Where a cap's measured watts come from, when that reading was first seen, and its age as the status was written."""

    source: str
    time: Time | None = None
    age_seconds: Count | None = None


class CapMeterStatus(ApiStruct, frozen=True):
    """What limits are held to because of a cap's meter, and what it shows to be drawn outside the GPUs."""

    state: Literal["Within", "Shaping", "Cut", "Silent"]
    allowed_watts: Count | None = None
    overhead_watts: Count | None = None


class PowerCapStatus(ApiStruct, frozen=True):
    """PowerCap.status, which the operator writes."""

    epoch: Count | None = None
    observed_generation: Count | None = None
    conditions: tuple[StoredCondition, ...] = ()
    effective_watts: Count | None = None
    active_schedule: str | None = None
    next_change: CapNextChange | None = None
    committed_watts: Count | None = None
    least_watts: Count | None = None
    measured_watts: Count | None = None
    measured: CapMeasured | None = None
    meter: CapMeterStatus | None = None
    headroom_watts: int | None = None
    nodes: Count | None = None
    breach: CapBreach | None = None
    energy_period: CapEnergyPeriod | None = None


@dataclass(frozen=True, slots=True)
class PowerCap:
    """One PowerCap. Where its spec cannot be read `spec` is None, and `refusal` says where and why.

    Such a cap is kept, other than an object of another kind: nothing may be raised while nobody knows what it bounds, and
    its status has to say so. `problems` names the parts of the status that cannot be read.
    """

    metadata: ObjectMeta
    spec: PowerCapSpec | None
    refusal: str
    status: PowerCapStatus
    problems: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def release_asked(self) -> bool:
        """Whether its annotation `flyball.dev/release` says that it need not be held after its deletion."""
        return self.metadata.annotations.get(ANNOTATION_RELEASE) == "true"


def read_power_cap(raw: Mapping[str, Any]) -> PowerCap:
    """A PowerCap from its JSON; raises InvalidObject where its metadata is not an object's."""
    metadata = read_metadata(KIND, raw)
    spec, refusal = None, ""
    try:
        spec = read_spec(KIND, metadata, raw, PowerCapSpec)
    except InvalidObject as error:
        refusal = str(error)
    status, problems = read_status(raw, PowerCapStatus)
    return PowerCap(metadata, spec, refusal, status, problems)
