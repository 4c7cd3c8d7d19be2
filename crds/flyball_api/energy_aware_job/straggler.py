"""The annotation by which somebody says of a job's pipelines that they will be waited with, or have to wait."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

# No iteration is planned for more: a plan has nothing slower to offer.
MAX_DEGREE = 100.0
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)
WANTED = "wanted: DEGREE [replica NUMBER] [from TIME] [until TIME], as 1.2 until 2026-01-31T12:00:00Z"


@dataclass(frozen=True, slots=True)
class Straggler:
    """Iterations take `degree` (1 to 100) times as long as the pipeline needs, `since` and `until` when that is known.

    `replica` (from 0) is the one that is slow, and goes on as it is; None: none of the job's, so that all wait.
    """

    degree: float
    replica: int | None = None
    since: datetime | None = None
    until: datetime | None = None


def read_straggler(text: str) -> Straggler:
    """The annotation's value, as `1.2`, `1.2 replica 0` or `1.2 from 2026-01-31T12:00:00Z until 2026-01-31T12:10:00Z`.

    Raises ValueError that says which word is wrong, and what would be right.
    """
    degree, *words = text.split() or [""]
    if not _NUMBER.fullmatch(degree) or not 1.0 <= float(degree) <= MAX_DEGREE:
        raise ValueError(f"{degree!r:.40} is no degree of 1 to {MAX_DEGREE:g}; {WANTED}")
    fields = dict(zip(words[::2], words[1::2], strict=False))
    if len(words) != 2 * len(fields) or not fields.keys() <= {"replica", "from", "until"}:
        raise ValueError(f"{' '.join(words)!r:.80} cannot be read; {WANTED}")
    replica = fields.get("replica")
    if replica is not None and not (replica.isascii() and replica.isdecimal() and len(replica) <= 6):
        raise ValueError(f"replica {replica!r:.40} is no number from 0; {WANTED}")
    since, until = (_instant(fields.get(name)) for name in ("from", "until"))
    if since is not None and until is not None and until <= since:
        raise ValueError(f"it ends at {fields['until']}, no later than it begins; {WANTED}")
    return Straggler(float(degree), None if replica is None else int(replica), since, until)


def _instant(text: str | None) -> datetime | None:
    """Raises ValueError where it is no time with its offset."""
    try:
        found = None if text is None else datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r:.40} is no time; {WANTED}") from None
    if found is not None and found.tzinfo is None:
        raise ValueError(f"{text!r:.40} does not say of which time zone it is; {WANTED}")
    return found
