"""Fetch what a kubelet needs for its pods: ConfigMaps, Secrets, tokens and kubeconfigs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec

from turnout.simulator.cluster.runtime.clients import ApiClient, ApiError
from turnout.simulator.processes.container_spec import CannotStart, Sources
from turnout.simulator.processes.volumes import File, TokenFile, Volume, wanted_objects

Object = dict[str, Any]
_TOKEN_MODE = 0o600
_DAY_S = 86_400


class ObjectSource:
    """Reads the objects that pods refer to, again at each start of a container."""

    def __init__(self, api: ApiClient, kubeconfig: bytes | None = None) -> None:
        """Take a client of the API. kubeconfig: of the local cluster; None for pods that get none."""
        self._api, self._kubeconfig = api, kubeconfig

    async def sources_of(self, pod: Object) -> Sources:
        """Read the ConfigMaps, Secrets and volumes to which a pod refers from the API server; missing ones are absent.

        Raises ApiError if the API server refuses a read with another status than 404, and the other errors of
        ApiClient.call.
        """
        maps, secrets, claims = wanted_objects(pod)
        mine = f"/api/v1/namespaces/{pod['metadata']['namespace']}"
        return Sources(
            await self._fetch(f"{mine}/configmaps", maps),
            await self._fetch(f"{mine}/secrets", secrets, "Secret"),
            await self._volumes_of_claims(f"{mine}/persistentvolumeclaims", claims),
        )

    async def _volumes_of_claims(self, path: str, names: Iterable[str]) -> dict[str, Object]:
        """Return the PersistentVolume of each claim that is bound to an existing one, by claim.

        path: of the claims. names: of claims. Raises the errors of _fetch().
        """
        claims = await self._fetch(path, names)
        bound = {name: str(each["spec"].get("volumeName", "")) for name, each in claims.items()}
        volumes = await self._fetch("/api/v1/persistentvolumes", filter(None, bound.values()))
        return {name: volumes[volume] for name, volume in bound.items() if volume in volumes}

    async def _fetch(self, path: str, names: Iterable[str], kind: str = "") -> dict[str, Object]:
        """Return the existing objects of these names, by name. Missing ones are left out.

        path: of their list. kind: is added to each object, "" for no addition. Raises ApiError if a read is refused
        with another status than 404, and the other errors of ApiClient.call.
        """

        async def fetch_one(name: str) -> tuple[str, Object | None]:
            """Return (name, object with `kind` added if given); (name, None) on 404."""
            try:
                found: Object = await self._api.call("GET", f"{path}/{name}")
            except ApiError as error:
                if error.code == 404:
                    return name, None
                raise
            return name, found | ({"kind": kind} if kind else {})

        found = await asyncio.gather(*(fetch_one(name) for name in sorted(names)))
        return {name: obj for name, obj in found if obj is not None}

    async def token_files(self, pod: Object, volumes: Iterable[Volume]) -> dict[str, dict[str, File]]:
        """Return the files with tokens for a pod's volumes: volume -> path in it -> file.

        Volumes without a token are absent. Raises CannotStart if the API server refuses a token, and
        aiohttp.ClientError or TimeoutError if it does not answer.
        """
        files_of_volume: dict[str, dict[str, File]] = {}
        for volume in volumes:
            for path, token_file in volume.tokens.items():
                raw = await self._token(pod, token_file)
                files_of_volume.setdefault(volume.name, {})[path] = File(raw, _TOKEN_MODE)
        return files_of_volume

    async def _token(self, pod: Object, token_file: TokenFile) -> bytes:
        """Return the text of a new token of the pod's service account, bound to the pod.

        The account is `default` if the pod names none. token_file: the lifetime in seconds and the audience that the
        volume asks for. Raises CannotStart if the API server refuses it, and aiohttp.ClientError or TimeoutError if it
        does not answer.
        """
        meta = pod["metadata"]
        account = pod["spec"].get("serviceAccountName") or "default"
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        spec: Object = {"expirationSeconds": token_file.expires_s, "boundObjectRef": bound}
        if token_file.audience:
            spec["audiences"] = [token_file.audience]
        try:
            return (await self._request(meta["namespace"], account, spec)).encode()
        except ApiError as error:
            raise CannotStart(f"no token of the service account {account}: {error}") from error

    async def kubeconfig_of(self, pod: Object) -> bytes | None:
        """Return a kubeconfig for a pod, with the pod's namespace as default.

        None if its automountServiceAccountToken is false, or if this source was made without a kubeconfig. The user
        is the pod's service account, with a token for one day; if the API server issues no tokens (501), the user of
        the local cluster. Raises CannotStart if the API server refuses a token, and aiohttp.ClientError or TimeoutError
        if it does not answer.
        """
        if self._kubeconfig is None or pod["spec"].get("automountServiceAccountToken") is False:
            return None
        meta, account = pod["metadata"], pod["spec"].get("serviceAccountName") or "default"
        config: Object = msgspec.json.decode(self._kubeconfig)
        try:
            token = await self._request(meta["namespace"], account, {"expirationSeconds": _DAY_S})
        except ApiError as error:
            if error.code != 501:
                raise CannotStart(f"no token of the service account {account}: {error}") from error
        else:
            config["users"][0]["user"] = {"token": token}
        for each in config["contexts"]:
            each["context"]["namespace"] = meta["namespace"]
        return msgspec.json.encode(config)

    async def _request(self, namespace: str, account: str, spec: Object) -> str:
        """Request a token of a service account, and return its text. spec: of the TokenRequest.

        Raises the errors of ApiClient.call.
        """
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        return str((await self._api.call("POST", path, body))["status"]["token"])
