"""Logs as one JSON object a line (or text for a terminal); each decision is one line with its object and its reason.

Whatever looks like a credential is blotted out on its way, in messages, fields and tracebacks alike: an error of a
library can quote a request's headers.
"""

from __future__ import annotations

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any

import orjson

FIELDS = "flyball_fields"
REDACTED = "[redacted]"

_SECRET_NAME = re.compile(r"token|secret|password|passwd|authorization|credential|private_?key|api_?key", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"""
    (?<=\bBearer\s)\S+ | (?<=\bBasic\s)[A-Za-z0-9+/=]{8,}         # an Authorization header
    | \beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*         # a JSON web token, which service accounts have
    | (?<=://)[^/\s:@]+:[^/\s@]+(?=@)                             # user:password in a URL
    | -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----[\s\S]*?(?:-----END[ ][A-Z ]*PRIVATE[ ]KEY-----|\Z)
    """,
    re.VERBOSE,
)


# What every record has; anything else on one was given as `extra` and belongs to what is told.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", FIELDS}


def redact(text: str) -> str:
    """`text` without what looks like a credential."""
    return _SECRET_VALUE.sub(REDACTED, text)


def _redact_field(name: str, value: Any) -> Any:
    if _SECRET_NAME.search(name):
        return REDACTED
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {str(key): _redact_field(str(key), item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_redact_field("", item) for item in value]
    return value


def _fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What a record tells beside its event, given by `decision` or as `extra`, without credentials."""
    told = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    return {name: _redact_field(name, value) for name, value in {**told, **getattr(record, FIELDS, {})}.items()}


def decision(logger: logging.Logger, event: str, **fields: Any) -> None:
    """Log one decision: what was decided (`event`), of which object, and why."""
    logger.info(event, extra={FIELDS: fields})


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, event, and the decision's own fields (what is not finite is null)."""

    def format(self, record: logging.LogRecord) -> str:
        head = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": redact(record.getMessage()),
        }
        line = {**head, **_fields_of(record), **head}  # the head comes first, and no field can stand in for it
        if record.exc_info:
            line["exception"] = redact(self.formatException(record.exc_info))
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


class TextFormatter(logging.Formatter):
    """The same for people: the fields as key=value."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        told = "".join(f" {name}={value}" for name, value in _fields_of(record).items())
        return redact(super().format(record)) + told


def configure_logging(log_format: str, level: str) -> None:
    """Send everything to stderr in `log_format` ("json" or "text"); raises ValueError for another format or level."""
    if log_format not in ("json", "text"):
        raise ValueError(f"log format {log_format!r} is unknown (json or text)")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
