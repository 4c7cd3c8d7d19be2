"""The ConfigMaps that pods mount, as files, and annotations beside them: what the kubelet writes before it starts a
container, of annotations again where they change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_kube.process.logs import get_logger
from flyball_kube.resources import CONFIG_MAPS
from flyball_kube.session import ApiSession

from flyball_testbed.workload.pods import GpuPod, MountedConfigMap

logger = get_logger(__name__)

RETRY_SECONDS = 0.5


def mounted_folder(config_maps: Path, pod: GpuPod, mounted: MountedConfigMap) -> Path:
    """Where the files of a ConfigMap are that a pod mounts."""
    return config_maps / pod.uid / mounted.name


class ConfigMapMounts:
    """Mounts pods' ConfigMaps below `folder`; `start` runs what has to wait for the API server.

    `is_wanted` says whether a pod still waits for its files; `on_mounted` is called with one that has them now.
    """

    def __init__(
        self,
        session: ApiSession,
        folder: Path,
        start: Callable[[Coroutine[Any, Any, object]], None],
        is_wanted: Callable[[GpuPod], bool],
        on_mounted: Callable[[GpuPod], None],
    ) -> None:
        self._session = session
        self._folder = folder
        self._start = start
        self._is_wanted = is_wanted
        self._on_mounted = on_mounted
        self._begun: set[str] = set()  # uids of pods whose ConfigMaps are being read, or have been
        self._mounted: set[str] = set()

    def are_there(self, pod: GpuPod) -> bool:
        """Whether a pod has all its files; where it has not, they are on their way from now on."""
        if not pod.config_maps or pod.uid in self._mounted:
            return True
        if pod.uid not in self._begun:
            self._begun.add(pod.uid)
            self._start(self._mount(pod))
        return False

    def forget(self, pod: GpuPod) -> None:
        """Keep nothing of a pod that is gone."""
        self._begun.discard(pod.uid)
        self._mounted.discard(pod.uid)

    async def _mount(self, pod: GpuPod) -> None:
        """Write the files of a pod's ConfigMaps; what is not there is waited for."""
        for mounted in pod.config_maps:
            while (files := await self._read(pod, mounted)) is None:
                await asyncio.sleep(RETRY_SECONDS)
                if not self._is_wanted(pod):
                    return
            folder = mounted_folder(self._folder, pod, mounted)
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (folder / name).write_text(text)
        self._mounted.add(pod.uid)
        self.refresh(pod)
        self._on_mounted(pod)

    def refresh(self, pod: GpuPod) -> None:
        """Write the files of a pod's annotations as these are now, where it has its files at all."""
        for mounted in pod.config_maps if pod.uid in self._mounted else ():
            for name, annotation in mounted.annotations.items():
                path = mounted_folder(self._folder, pod, mounted) / name
                text = pod.annotations.get(annotation, "")
                if not path.exists() or path.read_text() != text:
                    new = path.with_name(f".{name}.new")
                    new.write_text(text)
                    new.rename(path)

    async def _read(self, pod: GpuPod, mounted: MountedConfigMap) -> dict[str, str] | None:
        """The files of a ConfigMap by their names; None where one of them is not there and has to be."""
        try:
            data = (await self._session.get(CONFIG_MAPS.path(pod.namespace, mounted.name))).get("data") or {}
            return {name: data[key] for name, key in mounted.keys.items()}
        except (ApiError, ApiUnreachable, KeyError) as error:
            if mounted.optional and (isinstance(error, KeyError) or (isinstance(error, ApiError) and error.not_found)):
                return {}
            logger.warning("ConfigMap not mounted", pod=pod.name, config_map=mounted.name, error=str(error))
            return None
