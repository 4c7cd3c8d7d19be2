"""How the planner service is run, checked before anything is served."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flyball_kube.serving.names import LOOPBACK_ADDRESSES, LOOPBACK_NAMES

LEAST_TOKEN_LENGTH = 16


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """What `flyball planner serve` takes; raises ValueError for what cannot be, and for what anybody could use.

    `max_estimated_seconds` bounds what is asked for, `deadline_seconds` what it then takes; `kept_megabytes` those
    frontiers that are planned.
    """

    address: str = "127.0.0.1"
    port: int = 8095
    token_file: Path | None = None
    workers: int = 1
    max_waiting: int = 16
    max_estimated_seconds: float = 300.0
    deadline_seconds: float = 900.0
    kept_megabytes: int = 256

    def __post_init__(self) -> None:
        if self.address not in LOOPBACK_ADDRESSES and self.token_file is None:
            raise ValueError(
                f"address {self.address!r} lets other machines in: --token-file says which token they need"
            )
        _ = self.token

    @property
    def hosts(self) -> frozenset[str]:
        """The names that requests may have; empty: any."""
        return LOOPBACK_NAMES if self.address in LOOPBACK_ADDRESSES else frozenset()

    @property
    def token(self) -> str | None:
        """What every request must have; None where none needs one. Raises ValueError."""
        if self.token_file is None:
            return None
        try:
            token = self.token_file.read_text(encoding="ascii").strip()
        except OSError as error:
            raise ValueError(f"token file {self.token_file}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"token file {self.token_file}: {error}") from error
        if len(token) < LEAST_TOKEN_LENGTH or not token.isprintable() or " " in token:
            raise ValueError(
                f"token file {self.token_file}: wanted one line of {LEAST_TOKEN_LENGTH} characters or more without spaces"
            )
        return token
