"""How fast Jobs are made in namespaces where the API server has just refused one: what one job is denied, its neighbours
are denied too, and five hundred of them must not ask all the time."""

from __future__ import annotations

DENIED_SECONDS = 60.0
CREATES_PER_SECOND = 2.0
BURST = 4.0


class CreateLimit:
    """Lets everything pass but in namespaces with a refusal of the last minute; those share CREATES_PER_SECOND."""

    def __init__(self) -> None:
        self._denied_at: dict[str, float] = {}
        self._tokens = BURST
        self._filled_at = 0.0

    def take(self, namespace: str, monotonic: float) -> bool:
        """Take a place for a Job that is made there now; False where there is none. Without a limit there always is."""
        if not self._denies(namespace, monotonic):
            return True
        self._tokens = min(BURST, self._tokens + (monotonic - self._filled_at) * CREATES_PER_SECOND)
        self._filled_at = monotonic
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def answered(self, namespace: str, monotonic: float, *, denied: bool) -> None:
        """One was made there, or refused."""
        if denied:
            self._denied_at[namespace] = monotonic
        else:
            self._denied_at.pop(namespace, None)

    def next_seconds(self, monotonic: float) -> float:
        """Seconds until the next may be made where there is a limit."""
        denied = any(self._denies(namespace, monotonic) for namespace in self._denied_at)
        return 1.0 / CREATES_PER_SECOND if denied else float("inf")

    def _denies(self, namespace: str, monotonic: float) -> bool:
        return monotonic - self._denied_at.get(namespace, float("-inf")) < DENIED_SECONDS
