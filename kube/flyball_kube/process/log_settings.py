"""The settings of a process's logs, in a module of their own so that `--help` need not load the logging libraries."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from flyball_kube.process.options import option

LOG_FORMATS = ("json", "text")
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Raises ValueError for a format or a level that does not exist."""

    log_format: str = field(default="json", metadata=option("json, or text for a terminal."))
    log_level: str = field(default="INFO", metadata=option("DEBUG, INFO, WARNING or ERROR, in any letters."))

    def __post_init__(self) -> None:
        if self.log_format not in LOG_FORMATS:
            raise ValueError(f"log format {self.log_format!r} is unknown ({' or '.join(LOG_FORMATS)})")
        if self.log_level.upper() not in LOG_LEVELS:
            raise ValueError(f"log level {self.log_level!r} is unknown ({', '.join(LOG_LEVELS)})")

    @property
    def level(self) -> int:
        """The least level that is logged, as the standard library counts it."""
        return logging.getLevelNamesMapping()[self.log_level.upper()]
