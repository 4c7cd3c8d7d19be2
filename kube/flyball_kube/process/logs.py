"""Logs: one JSON object a line in the cluster, readable lines on a terminal; structlog for us, the same for every library.

    logger = get_logger(__name__)
    logger.info("grant", node="n1", epoch=3, reason="a cap was lowered")

A line says what happened (`event`) and to what, in fields of their own; a logger may have fields that all its lines carry.
Records of the standard library's logging (kopf's, aiohttp's, the planner's) take the same way out. Whatever looks like a
credential is replaced, in messages, fields and tracebacks alike: an error of a library can quote a request's headers.
"""

from __future__ import annotations

import logging
import re
import sys
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, cast

import orjson

_RICH = sys.modules.get("rich")
if _RICH is None:
    # structlog imports rich wherever it is installed, 5 MiB in every agent, for tracebacks that are written plainly here.
    sys.modules["rich"] = None  # type: ignore[assignment]
import structlog

if _RICH is None:
    del sys.modules["rich"]
from structlog.contextvars import bound_contextvars, merge_contextvars
from structlog.dev import ConsoleRenderer, plain_traceback
from structlog.processors import format_exc_info
from structlog.stdlib import BoundLogger, ExtraAdder, ProcessorFormatter, filter_by_level
from structlog.typing import EventDict, Processor, WrappedLogger

from flyball_kube.process.log_settings import LogSettings

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


def redact(text: str) -> str:
    """`text` without what looks like a credential."""
    return _SECRET_VALUE.sub(REDACTED, text)


@lru_cache(maxsize=1024)  # every line asks, and there are a few dozen names
def _names_a_secret(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def _redact_field(name: str, value: Any) -> Any:
    if _names_a_secret(name):
        return REDACTED
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {str(key): _redact_field(str(key), item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_redact_field("", item) for item in value]
    return value


def get_logger(name: str, **fields: Any) -> BoundLogger:
    """The logger of a module (`__name__`), whose lines all have `fields`.

    It hands its lines to the standard library's logger of that name, so levels, handlers and pytest's caplog work as ever.
    """
    logger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[filter_by_level, merge_contextvars, ProcessorFormatter.wrap_for_formatter],
        wrapper_class=BoundLogger,
        cache_logger_on_first_use=True,
        **fields,
    )
    return cast(BoundLogger, logger)


def fields_for_all(**fields: Any) -> AbstractContextManager[None]:
    """Inside this context every line of every logger has `fields`; so do lines of tasks that are started in it."""
    return bound_contextvars(**fields)


def _shape(logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
    """The line as it is written: time, level, logger and event first, which no field can stand in for; nothing secret."""
    record: logging.LogRecord = line.pop("_record")
    del line["_from_structlog"]
    head = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": redact(str(line.pop("event"))),
    }
    fields = {name: _redact_field(name, value) for name, value in line.items() if name not in head}
    return {**head, **fields}


def _json(logger: WrappedLogger, method: str, line: EventDict) -> str:
    return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()  # what is not finite becomes null


def formatter(log_format: str, colors: bool = False) -> logging.Formatter:
    """What turns records, ours and others', into lines of JSON, or of text with another `log_format` than "json"."""
    renderer: Processor = _json
    if log_format != "json":
        renderer = ConsoleRenderer(
            colors=colors, exception_formatter=plain_traceback, timestamp_key="time", pad_event_to=0, sort_keys=False
        )
    return ProcessorFormatter(processors=[format_exc_info, _shape, renderer], foreign_pre_chain=[ExtraAdder()])


def configure_logging(settings: LogSettings) -> None:
    """Send every line of this process to stderr, in the format and from the level of `settings`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(settings.log_format, colors=sys.stderr.isatty()))
    logging.basicConfig(level=settings.level, handlers=[handler], force=True)
