"""The Serve application: each replica owns an Izwi process and passes requests on to it."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import aiohttp
import requests
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from izwi_ray.autoscaling import load_of_reports
from izwi_ray.process import IzwiError, IzwiProcess
from izwi_ray.proxy import Proxy, Receive, Scope, Send, refuse

_LOG = logging.getLogger("ray.serve")
_MODEL_HEADER = b"serve_multiplexed_model_id"


class Settings(BaseModel):
    """The `args` of the application in a Serve config file."""

    model_config = ConfigDict(extra="forbid")

    #: Flags of `izwi serve`, like `["--model", "kokoro-82m"]`.
    arguments: list[str] = []
    #: Environment variables of the process, like `IZWI_HOME`.
    environment: dict[str, str] = {}
    #: The key that clients must send, as Izwi takes it: 16 printable ASCII characters or more, without blanks. Without it
    #: anybody who reaches Serve's port may ask.
    api_key: str | None = Field(default=None, pattern=r"^[!-~]{16,}$")
    #: Processor cores of a replica; also Izwi's number of threads.
    cpus: float = Field(default=1.0, gt=0)
    #: GPUs of a replica.
    gpus: float = Field(default=0.0, ge=0)
    min_replicas: int = Field(default=1, ge=1)
    max_replicas: int = Field(default=4, ge=1)
    #: Requests and WebSocket sessions of a replica that Serve aims at, and the most that it sends to one.
    target_ongoing_requests: float = Field(default=8.0, gt=0)
    max_ongoing_requests: int = Field(default=64, ge=1)
    upscale_delay_s: float = Field(default=5.0, ge=0)
    downscale_delay_s: float = Field(default=300.0, ge=0)
    #: Longer than the ten seconds between two reports.
    look_back_period_s: float = Field(default=15.0, gt=10)
    #: Models that a replica keeps loaded for requests with the header `serve_multiplexed_model_id`.
    models_per_replica: int = Field(default=3, ge=1)
    ready_timeout_s: float = Field(default=300.0, gt=0)
    drain_timeout_s: float = Field(default=30.0, gt=0)


class _Model:
    """A model that is loaded on this replica. Serve calls `__del__` in a thread when another one needs its place."""

    def __init__(self, process: IzwiProcess, model_id: str) -> None:
        self._process: IzwiProcess | None = process
        self._id = model_id

    def __del__(self) -> None:
        process, self._process = self._process, None
        if process is None or process.pid is None:
            return
        try:
            # A model that is in use or a default one stays: Izwi refuses, and its own memory budget decides.
            url = f"{process.url(5.0)}/v1/models/{self._id}/unload"
            requests.post(url, headers=process.headers, timeout=30.0)
        except (requests.RequestException, IzwiError) as error:
            _LOG.warning("the model %s is not unloaded: %s", self._id, error)


class _Refused(Exception):
    """Izwi did not load a model; its answer goes to the client."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


class Replica:
    """One replica and its Izwi process."""

    def __init__(self, settings: Settings) -> None:
        arguments = list(settings.arguments)
        if not any(argument.split("=")[0] == "--threads" for argument in arguments):
            arguments += ["--threads", str(max(1, round(settings.cpus)))]
        # All clients come through here: the limits of one address are those of the whole.
        connections = str(4 * settings.max_ongoing_requests + 64)
        self._process = IzwiProcess(
            [*arguments, "--max-connections-per-peer", connections],
            settings.environment,
            settings.api_key,
            settings.ready_timeout_s,
            settings.drain_timeout_s,
        )
        self._process.url()
        # With a key of the application, Izwi itself checks what the client sends.
        self._proxy = Proxy(self._url, {} if settings.api_key else self._process.headers)
        self._refused = 0.0

        async def load(model_id: str) -> _Model:
            return await self._load(model_id)

        self._multiplexed = serve.multiplexed(load, max_num_models_per_replica=settings.models_per_replica)

    def __serve_build_asgi_app__(self) -> Any:
        """What `serve.ingress` serves. A function: uvicorn takes a bound method for ASGI 2."""

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await self._asgi(scope, receive, send)

        return application

    async def check_health(self) -> None:
        """Fails where only a new replica helps. A process that died is started again without one."""
        if self._process.failure:
            raise IzwiError(self._process.failure)
        if self._process.pid is None:
            return
        try:
            status, body = await self.ask("GET", "/livez")
        except (aiohttp.ClientError, IzwiError, TimeoutError):
            return  # It is being started again.
        if status != 200:
            raise IzwiError(f"izwi is not alive: {body.decode(errors='replace')}")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What the autoscaling policy knows of this replica."""
        session = await self._proxy.session()
        url = await self._url()
        timeout = aiohttp.ClientTimeout(total=5.0)
        async with session.get(f"{url}/health", headers=self._process.headers, timeout=timeout) as answer:
            health = await answer.json()
        async with session.get(f"{url}/metrics", headers=self._process.headers, timeout=timeout) as answer:
            metrics = await answer.text()
        load, self._refused = load_of_reports(health, metrics, self._refused)
        return {"slack_ms": load.slack_ms, "refused": load.refused, "waiting": load.waiting}

    async def ask(self, method: str, path: str) -> tuple[int, bytes]:
        """A request of the replica's own."""
        session = await self._proxy.session()
        url = await self._url()
        async with session.request(method, url + path, headers=self._process.headers) as answer:
            return answer.status, await answer.read()

    def stop(self) -> None:
        """Drains the process and ends it."""
        self._process.stop()

    async def __del__(self) -> None:
        # A replica whose Izwi did not start has no proxy.
        if proxy := getattr(self, "_proxy", None):
            await proxy.close()
        if hasattr(self, "_process"):
            await asyncio.to_thread(self.stop)

    async def _url(self) -> str:
        return await asyncio.to_thread(self._process.url, 60.0)

    async def _load(self, model_id: str) -> _Model:
        status, body = await self.ask("POST", f"/v1/models/{model_id}/load")
        if status >= 400:
            raise _Refused(status, body)
        return _Model(self._process, model_id)

    async def _asgi(self, scope: Scope, receive: Receive, send: Send) -> None:
        wanted = [value.decode() for name, value in scope.get("headers", ()) if name.replace(b"-", b"_") == _MODEL_HEADER]
        if wanted and scope["type"] == "http":
            try:
                await self._multiplexed(wanted[0])
            except _Refused as refused:
                headers = [(b"content-type", b"application/json")]
                await send({"type": "http.response.start", "status": refused.status, "headers": headers})
                await send({"type": "http.response.body", "body": refused.body})
                return
            except (aiohttp.ClientError, IzwiError, TimeoutError) as error:
                await refuse(send, f"izwi did not load {wanted[0]!r}: {error}")
                return
        await self._proxy(scope, receive, send)


def app(args: dict[str, Any]) -> Application:
    """Builds the application; `args` are `Settings`."""
    settings = Settings(**args)
    autoscaling = AutoscalingConfig(
        min_replicas=settings.min_replicas,
        max_replicas=settings.max_replicas,
        target_ongoing_requests=settings.target_ongoing_requests,
        upscale_delay_s=settings.upscale_delay_s,
        downscale_delay_s=settings.downscale_delay_s,
        look_back_period_s=settings.look_back_period_s,
        policy=AutoscalingPolicy(policy_function="izwi_ray.autoscaling:policy"),
    )
    deployment = serve.deployment(
        serve.ingress()(Replica),
        name="Izwi",
        max_ongoing_requests=settings.max_ongoing_requests,
        autoscaling_config=autoscaling,
        ray_actor_options={"num_cpus": settings.cpus, "num_gpus": settings.gpus},
        graceful_shutdown_timeout_s=settings.drain_timeout_s + 10.0,
        health_check_period_s=5.0,
        health_check_timeout_s=30.0,
    )
    return deployment.bind(settings)


def run(args: dict[str, Any], host: str, port: int, blocking: bool = True) -> None:
    """Runs the application on the cluster of `RAY_ADDRESS`, or on one of this machine."""
    serve.start(http_options={"host": host, "port": port})
    serve.run(app(args), name="izwi", blocking=blocking)


__all__: Sequence[str] = ["Replica", "Settings", "app", "run"]
