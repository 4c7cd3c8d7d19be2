"""How pods are moved on: annotations that the nodes' stages wait for, each written once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_kube.process.logs import get_logger
from flyball_kube.resources import PODS
from flyball_kube.session import ApiSession

from flyball_testbed.workload.pods import GpuPod

logger = get_logger(__name__)

RETRY_SECONDS = 0.5


class PodAnnotations:
    """Annotates pods; `start` runs what has to wait for the API server."""

    def __init__(self, session: ApiSession, start: Callable[[Coroutine[Any, Any, object]], None]) -> None:
        self._session = session
        self._start = start
        self._annotated: set[tuple[str, str]] = set()  # pods' uids, and annotations that they were given

    def annotate(self, pod: GpuPod, annotations: Mapping[str, str]) -> None:
        """Annotate a pod once; tried again until it is done or the pod is gone."""
        wanted = {name: value for name, value in annotations.items() if (pod.uid, name) not in self._annotated}
        wanted = {name: value for name, value in wanted.items() if pod.annotations.get(name) != value}
        if wanted:
            self._annotated |= {(pod.uid, name) for name in wanted}
            self._start(self._patch(pod, wanted))

    def forget(self, pod: GpuPod) -> None:
        """Keep nothing of a pod that is gone."""
        self._annotated = {(uid, name) for uid, name in self._annotated if uid != pod.uid}

    async def _patch(self, pod: GpuPod, annotations: dict[str, str]) -> None:
        body = {"metadata": {"uid": pod.uid, "annotations": annotations}}
        while True:
            try:
                await self._session.patch(PODS.path(pod.namespace, pod.name), body)
                return
            except ApiError as error:
                if error.not_found or error.conflict:  # gone, or another pod of that name: the uid differs
                    return
                logger.warning("pod not written", pod=pod.key, error=str(error))
            except ApiUnreachable as error:
                logger.warning("pod not written", pod=pod.key, error=str(error))
            await asyncio.sleep(RETRY_SECONDS)
