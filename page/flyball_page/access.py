"""Who may see what: a request's bearer token is reviewed by the API server, and so is what its account may list.

The page reads with rights of its own, so that it would show everybody what it sees itself. Answers are kept for a minute,
by a hash of the token, never the token; how many tokens may be reviewed in a second is bounded: anybody can make them up.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from flyball_kube.resources import ENERGY_AWARE_JOBS, ENERGY_PROFILES, GPU_NODES, POWER_CAPS, Resource
from flyball_kube.serving.token_bucket import TokenBucket
from flyball_kube.session import ApiSession, JsonObject

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path, no secret
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
# The API server's own bound on a request's headers is a megabyte; tokens of service accounts have a thousand characters.
MAX_TOKEN_LENGTH = 16 * 1024
KEPT_SECONDS = 60.0
MAX_KEPT = 512
# Of the namespaces that have jobs; whoever may list more of them one by one is shown these.
MAX_NAMESPACES = 64
REVIEWS_PER_SECOND, REVIEWS_BURST = 5.0, 20.0


class Unauthenticated(Exception):
    """The request has no bearer token, or one that the API server does not take; the message says which."""


class Forbidden(Exception):
    """The account may not see what was asked for; the message names the right that is missing."""


class TooManyReviews(Exception):
    """More unknown tokens came than may be reviewed; another try later may pass."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """An account and what it may list: caps and nodes (`power`), the jobs of all namespaces, or those of some.

    What was learned of jobs, their `profiles`, is a right of its own: of all namespaces, or of some.
    """

    name: str
    power: bool
    jobs: bool
    namespaces: frozenset[str] = frozenset()
    profiles: bool = False
    profile_namespaces: frozenset[str] = frozenset()

    def require_power(self) -> None:
        """Raises Forbidden unless it may see caps and nodes."""
        if not self.power:
            raise Forbidden(
                f"{self.name} may not list powercaps and gpunodes of flyball.dev (the role flyball-power-viewer may)"
            )

    def require_jobs(self, namespace: str = "") -> frozenset[str] | None:
        """The namespaces whose jobs it may see, None for all; raises Forbidden for none, or not that of `namespace`."""
        if self.jobs:
            return None
        if not self.namespaces or (namespace and namespace not in self.namespaces):
            where = f"in {namespace}" if namespace else "in any namespace that has some"
            raise Forbidden(f"{self.name} may not list energyawarejobs of flyball.dev {where}")
        return self.namespaces

    def may_see_profiles(self, namespace: str) -> bool:
        """Whether it may see what was learned of the jobs of a namespace."""
        return self.profiles or namespace in self.profile_namespaces


def bearer_token(authorization: str) -> str:
    """The token of an Authorization header; raises Unauthenticated where it has none, or an absurd one."""
    scheme, _, token = authorization.strip().partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise Unauthenticated("a Kubernetes bearer token is needed, such as `kubectl create token ACCOUNT` gives")
    if len(token) > MAX_TOKEN_LENGTH or not token.isascii() or not token.isprintable():
        raise Unauthenticated("that is no bearer token")
    return token


class Reviews:
    """Asks the API server about tokens, and remembers its answers."""

    def __init__(
        self,
        session: ApiSession,
        job_namespaces: Callable[[], Iterable[str]] = tuple,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._job_namespaces = job_namespaces
        self._monotonic = monotonic
        self._kept: OrderedDict[bytes, tuple[float, Viewer | None]] = OrderedDict()  # None: refused
        self._under_way: dict[bytes, asyncio.Future[Viewer | None]] = {}
        self._rate = TokenBucket(REVIEWS_PER_SECOND, REVIEWS_BURST, monotonic)

    async def viewer(self, token: str) -> Viewer:
        """Whose token it is, and what that account may list.

        Raises Unauthenticated, TooManyReviews, and ApiError or ApiUnreachable where nobody can say.
        """
        key = hashlib.sha256(token.encode()).digest()
        until, kept = self._kept.get(key, (float("-inf"), None))
        if until <= self._monotonic():
            kept = await self._reviewed(key, token)
        if kept is None:
            raise Unauthenticated("the API server does not take this token: is it of this cluster, and not expired?")
        return kept

    async def _reviewed(self, key: bytes, token: str) -> Viewer | None:
        under_way = self._under_way.get(key)
        if under_way is None:
            if not self._rate.take():
                raise TooManyReviews("too many tokens that are not known yet; try again in some seconds")
            under_way = asyncio.ensure_future(self._review(token))
            self._under_way[key] = under_way
            under_way.add_done_callback(lambda done: self._keep(key, done))
        # Who goes away must not take the answer away from the others who wait for it.
        return await asyncio.shield(under_way)

    def _keep(self, key: bytes, done: asyncio.Future[Viewer | None]) -> None:
        del self._under_way[key]
        if done.cancelled() or done.exception() is not None:
            return
        self._kept[key] = (self._monotonic() + KEPT_SECONDS, done.result())
        self._kept.move_to_end(key)
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    async def _review(self, token: str) -> Viewer | None:
        answer = await self._session.create(
            TOKEN_REVIEWS,
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}},
        )
        status = answer.get("status") or {}
        if not status.get("authenticated"):
            return None
        user = status.get("user") or {}
        everywhere = (POWER_CAPS, GPU_NODES, ENERGY_AWARE_JOBS, ENERGY_PROFILES)
        caps, nodes, jobs, profiles = await asyncio.gather(*(self._may_list(user, each) for each in everywhere))
        there = sorted(self._job_namespaces())[:MAX_NAMESPACES]
        namespaces = frozenset() if jobs else await self._may_list_in(user, ENERGY_AWARE_JOBS, there)
        # Of jobs that it does not see it is shown nothing anyway.
        of_jobs = there if jobs else sorted(namespaces)
        learned = frozenset() if profiles else await self._may_list_in(user, ENERGY_PROFILES, of_jobs)
        return Viewer(str(user.get("username", "")), caps and nodes, jobs, namespaces, profiles, learned)

    async def _may_list_in(self, user: JsonObject, resource: Resource, namespaces: Sequence[str]) -> frozenset[str]:
        may = await asyncio.gather(*(self._may_list(user, resource, each) for each in namespaces))
        return frozenset(each for each, allowed in zip(namespaces, may, strict=True) if allowed)

    async def _may_list(self, user: JsonObject, resource: Resource, namespace: str = "") -> bool:
        spec = {
            "user": user.get("username", ""),
            "uid": user.get("uid", ""),
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            "resourceAttributes": {
                "verb": "list",
                "group": resource.group,
                "version": resource.version,
                "resource": resource.plural,
                "namespace": namespace,  # empty: all of them
            },
        }
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = await self._session.create(ACCESS_REVIEWS, body)
        return bool((answer.get("status") or {}).get("allowed"))
