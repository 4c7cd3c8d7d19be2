"""What is asked for: a profile and what to plan of it, checked as far as that is possible without planning it."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

import msgspec
from flyball_frontiers.pipeline import PipelineProfile, Reconfiguration, Schedule, check_size, pipeline_graph
from flyball_frontiers.pipeline.document import envpipe_document, perseus_document
from msgspec import Meta

MAX_POINTS = 500
MAX_REASON_LENGTH = 1000


class InvalidRequest(ValueError):
    """A request for which there can be no plan; the message names the row or field and what would be right there."""

    def __init__(self, message: str) -> None:
        super().__init__(message[:MAX_REASON_LENGTH])


class FrontierRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A frontier to plan.

    `profile` is a CSV text or a list of rows with the columns stage, instruction, frequency (MHz), time (s), energy (J);
    `blocking_watts` what a GPU draws while it waits. The rest is what `flyball frontier` calls the same.
    """

    profile: str | list[dict[str, Any]]
    microbatches: Annotated[int, Meta(ge=1, le=65536)]
    blocking_watts: Annotated[float, Meta(ge=0.0, le=100_000.0)] = 0.0
    points: Annotated[int, Meta(ge=2, le=MAX_POINTS)] = 60
    schedule: Literal["1f1b", "gpipe", "interleaved-1f1b", "early-recompute-1f1b"] = "1f1b"
    planner: Literal["perseus", "envpipe-balanced", "envpipe-greedy"] = "perseus"
    chunks_per_gpu: Annotated[int, Meta(ge=1, le=64)] = 1

    @property
    def id(self) -> str:
        """The same for equal requests, in whatever order their fields came, and different for all others."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:32]

    def measured(self) -> PipelineProfile:
        """The pipeline's profile, read from the request. Raises ProfileError, which names the row."""
        if isinstance(self.profile, str):
            return PipelineProfile.from_csv(self.profile)
        return PipelineProfile.from_rows(self.profile)


def read_request(body: bytes, max_estimated_seconds: float) -> FrontierRequest:
    """The request in a JSON body, of a pipeline that can be planned in about so many seconds. Raises InvalidRequest."""
    try:
        request = msgspec.json.decode(body, type=FrontierRequest)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(str(error)) from error
    try:
        size = check_size(
            request.measured(), Schedule(request.schedule), request.microbatches, chunks_per_gpu=request.chunks_per_gpu
        )
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    if size.seconds > max_estimated_seconds:
        raise InvalidRequest(f"{size}; this service takes what needs {max_estimated_seconds:g} s at the most")
    return request


def document_of(request: FrontierRequest) -> dict[str, Any]:
    """What `flyball frontier --output` writes of it. Raises ValueError where the profile does not fit the schedule."""
    profile = request.measured()
    if request.planner == "perseus":
        graph = pipeline_graph(
            profile, Schedule(request.schedule), request.microbatches, chunks_per_gpu=request.chunks_per_gpu
        )
        return perseus_document(graph, request.blocking_watts, request.points)
    if request.schedule != "1f1b":
        raise InvalidRequest(f"EnvPipe plans 1f1b, not {request.schedule}")
    reconfiguration = Reconfiguration(request.planner.removeprefix("envpipe-"))
    return envpipe_document(profile, request.microbatches, request.blocking_watts, reconfiguration)


def written(document: dict[str, Any]) -> bytes:
    """A document as it is sent, kept, and put into a ConfigMap."""
    return json.dumps(document, allow_nan=False).encode()
