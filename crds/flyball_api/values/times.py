"""Times as the API has them: RFC 3339 in UTC, whole seconds, or microseconds where Kubernetes wants them."""

from __future__ import annotations

from datetime import UTC, datetime


def whole_second(instant: datetime) -> datetime:
    """The instant in UTC without its fraction of a second, as statuses have it."""
    try:
        return instant.astimezone(UTC).replace(microsecond=0)
    except OverflowError:  # within a day of year 1 or 9999 with an offset, which the API server accepts
        return instant.replace(tzinfo=UTC, microsecond=0)


def format_time(instant: datetime) -> str:
    """RFC 3339 in UTC, whole seconds, as Kubernetes writes times."""
    return whole_second(instant).isoformat().replace("+00:00", "Z")


def format_micro_time(instant: datetime) -> str:
    """RFC 3339 in UTC with microseconds, as Kubernetes has them in Leases and Events (its `MicroTime`)."""
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
