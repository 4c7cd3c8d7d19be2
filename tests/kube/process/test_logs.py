"""Logs that a machine can read, a person can follow, and nobody can steal a credential from."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flyball_kube.process.log_settings import LogSettings
from flyball_kube.process.logs import REDACTED, configure_logging, fields_for_all, formatter, get_logger, redact
from structlog.stdlib import BoundLogger

JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW0ifQ.c2lnbmF0dXJl-_x"
NAME = "flyball_operator.test"


class _Lines(logging.Handler):
    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


Lines = Callable[[str], tuple[BoundLogger, list[str]]]


@pytest.fixture
def logger_to() -> Iterator[Lines]:
    """A logger of ours, and the lines that come out in a format."""
    library = logging.getLogger(NAME)
    before = library.level, library.propagate

    def make(log_format: str) -> tuple[BoundLogger, list[str]]:
        handler = _Lines(formatter(log_format))
        library.handlers[:], library.propagate = [handler], False
        library.setLevel(logging.INFO)
        return get_logger(NAME), handler.lines

    yield make
    library.handlers.clear()
    library.level, library.propagate = before


def test_a_decision_is_one_line_of_json_with_its_fields(logger_to: Lines) -> None:
    logger, lines = logger_to("json")
    logger.info("grant", node="n1", epoch=3, reason="two\nlines", nodes=("a", "b"), watts=math.nan, seen={1: 2.5})
    (line,) = lines
    assert "\n" not in line
    parsed: dict[str, Any] = json.loads(line)
    assert list(parsed)[:4] == ["time", "level", "logger", "event"]
    assert parsed.pop("time").endswith("+00:00")
    assert parsed == {
        "level": "info",
        "logger": NAME,
        "event": "grant",
        "node": "n1",
        "epoch": 3,
        "reason": "two\nlines",
        "nodes": ["a", "b"],
        "watts": None,
        "seen": {"1": 2.5},
    }


def test_fields_that_a_logger_has_are_on_all_its_lines(logger_to: Lines) -> None:
    _, lines = logger_to("json")
    logger = get_logger(NAME, node="n1")
    logger.info("mode")
    logger.bind(epoch=3).warning("drift", uuid="GPU-1")
    logger.info("mode")
    assert [{name: value for name, value in json.loads(line).items() if name != "time"} for line in lines] == [
        {"level": "info", "logger": NAME, "event": "mode", "node": "n1"},
        {"level": "warning", "logger": NAME, "event": "drift", "node": "n1", "epoch": 3, "uuid": "GPU-1"},
        {"level": "info", "logger": NAME, "event": "mode", "node": "n1"},
    ]


async def test_fields_of_a_context_are_on_the_lines_of_its_tasks_too(logger_to: Lines) -> None:
    logger, lines = logger_to("json")
    go_on = asyncio.Event()

    async def write() -> None:
        await go_on.wait()
        logger.info("written")

    with fields_for_all(cycle=7):
        logger.info("grant", node="n1")
        task = asyncio.create_task(write())
    logger.info("rest")
    go_on.set()
    await task
    assert [(line["event"], line.get("cycle")) for line in map(json.loads, lines)] == [
        ("grant", 7),
        ("rest", None),
        ("written", 7),
    ]


def test_no_field_can_stand_in_for_what_every_line_has(logger_to: Lines) -> None:
    logger, lines = logger_to("json")
    logger.info("grant", level="fatal", time="never", logger="root")
    parsed = json.loads(lines[0])
    assert (parsed["level"], parsed["logger"]) == ("info", NAME)
    assert parsed["time"] != "never"


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_lines_below_the_level_are_left_out(logger_to: Lines, log_format: str) -> None:
    logger, lines = logger_to(log_format)
    logger.debug("grant")
    assert lines == []


def test_a_library_s_record_is_a_line_like_ours(logger_to: Lines) -> None:
    _, lines = logger_to("json")
    logging.getLogger(NAME).warning("probe %s of %d", "loop", 2, extra={"job": "research/gpt2", "pair": (1, 2)})
    parsed = json.loads(lines[0])
    assert parsed.pop("time").endswith("+00:00")
    assert parsed == {
        "level": "warning",
        "logger": NAME,
        "event": "probe loop of 2",
        "job": "research/gpt2",
        "pair": [1, 2],
    }


@pytest.mark.parametrize("logger_of", [get_logger, logging.getLogger])
def test_an_exception_is_part_of_its_line(logger_to: Lines, logger_of: Callable[[str], Any]) -> None:
    _, lines = logger_to("json")
    try:
        raise ValueError(f"refused:\nAuthorization: Bearer {JWT}")
    except ValueError as error:
        logger_of(NAME).exception("a cycle failed")
        logger_of(NAME).error("a cycle failed", exc_info=error)
    assert len(lines) == 2
    for line in lines:
        assert "\n" not in line
        exception = json.loads(line)["exception"]
        assert exception.startswith("Traceback")
        assert "ValueError: refused:\n" in exception
        assert JWT not in line


def test_text_for_terminals_names_the_fields(logger_to: Lines) -> None:
    logger, lines = logger_to("text")
    logger.info("plan", job="research/gpt2", gpus=8)
    assert lines[0].endswith("[info     ] plan [flyball_operator.test] job=research/gpt2 gpus=8")
    try:
        raise ValueError("too low")
    except ValueError:
        logger.exception("a cycle failed")
    assert lines[1].endswith("ValueError: too low")


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_credentials_never_reach_a_log(logger_to: Lines, log_format: str) -> None:
    logger, lines = logger_to(log_format)
    key = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----"
    logging.getLogger(NAME).warning("headers {'Authorization': 'Bearer %s'}", "opaque-token-1")
    logger.warning(f"GET https://admin:hunter2@10.0.0.1/api failed; {key}")
    logger.info("login", bearer_token="opaque-token-2", config={"clientSecret": "hunter2"}, seen=[f"x {JWT}"])
    text = "\n".join(lines)
    for secret in ("opaque-token-1", "opaque-token-2", "hunter2", "MIIEow", JWT):
        assert secret not in text
    assert text.count(REDACTED) == 6
    assert "10.0.0.1/api failed" in text


def test_ordinary_words_stay() -> None:
    text = "the lease of node-7 is renewed; basic checks at https://host:6443/healthz; bearer of news"
    assert redact(text) == text
    assert redact("bearers eyJust.words") == "bearers eyJust.words"


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:], root.level = handlers, level


def test_configuring_takes_over_the_root_logger(
    root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging(LogSettings("json", "warning"))
    assert root_logger.level == logging.WARNING
    get_logger(NAME).info("left out")
    get_logger(NAME).warning("drift", node="n1")
    configure_logging(LogSettings("text", "info"))
    logging.getLogger("kopf").info("ready")
    ours, kopfs = capsys.readouterr().err.splitlines()
    assert json.loads(ours)["node"] == "n1"
    assert "ready" in kopfs


def test_another_format_or_level_is_refused() -> None:
    with pytest.raises(ValueError, match=r"log format 'xml' is unknown \(json or text\)"):
        LogSettings("xml")
    with pytest.raises(ValueError, match=r"log level 'loud' is unknown \(DEBUG, INFO"):
        LogSettings("json", "loud")
