"""How many replicas to run: by ongoing requests, and by how far Izwi's live streams are ahead of their listeners."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray.serve.config import AutoscalingContext

#: The slack of a replica without live streams, and the most that one reports.
MOST_SLACK_MS = 10_000.0
#: Below this slack of any live stream another replica is needed.
LOW_SLACK_MS = 400.0
#: Above this slack of all live streams a replica may go.
AMPLE_SLACK_MS = 1_500.0


@dataclass(frozen=True)
class Load:
    """What a replica reports, each a mean over the look-back period."""

    #: Audio that is delivered and not yet played, of the live stream that has the least.
    slack_ms: float
    #: Requests and streams that Izwi refused because it is full, since the report before.
    refused: float
    #: Requests that wait for admission.
    waiting: float

    def is_short(self) -> bool:
        """Whether its streams come too close to a gap, or it turns clients away."""
        return self.refused > 0 or self.slack_ms < LOW_SLACK_MS or self.waiting >= 1

    def is_ample(self) -> bool:
        """Whether it could take more."""
        return self.refused == 0 and self.slack_ms > AMPLE_SLACK_MS and self.waiting < 0.5


def replicas_needed(current: int, ongoing: float, target_ongoing: float, loads: Sequence[Load]) -> int:
    """The number of replicas, before Serve applies its bounds and delays.

    One more for each replica that is short; never fewer than now while one of them has no ample slack.
    """
    by_requests = math.ceil(ongoing / target_ongoing)
    short = sum(load.is_short() for load in loads)
    if short:
        return max(by_requests, current + short)
    if all(load.is_ample() for load in loads):
        return by_requests
    return max(by_requests, current)


def loads_of(metrics: Mapping[str, Mapping[Any, float]]) -> list[Load]:
    """The reports of all replicas, from Serve's `{metric: {replica: value}}`."""
    slack = metrics.get("slack_ms", {})
    refused, waiting = metrics.get("refused", {}), metrics.get("waiting", {})
    return [Load(slack[replica], refused.get(replica, 0.0), waiting.get(replica, 0.0)) for replica in slack]


def policy(ctx: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """The autoscaling policy of the Serve application."""
    needed = replicas_needed(
        ctx.target_num_replicas,
        ctx.total_num_requests,
        ctx.config.get_target_ongoing_requests(),
        loads_of(ctx.aggregated_metrics or {}),
    )
    return needed, {}


def load_of_reports(health: Mapping[str, Any], metrics: str, refused_before: float) -> tuple[Load, float]:
    """A replica's load from Izwi's `/health` and `/metrics`, and the number of all refusals so far."""
    models = [model for model in health.get("models", {}).values() if model.get("state") == "ready"]
    slack = [float(stream["slack_ms"]) for model in models for stream in model.get("streams", [])]
    waiting = sum(_values(metrics, "izwi_num_requests_waiting"))
    refused = sum(
        value
        for reason in ("saturated", "overloaded")
        for value in _values(metrics, f'izwi_requests_rejected_total{{reason="{reason}"}}')
    )
    # A process that was started again counts from zero.
    new = refused - refused_before if refused >= refused_before else refused
    return Load(min([*slack, MOST_SLACK_MS]), new, waiting), refused


def _values(metrics: str, series: str) -> list[float]:
    lines = (line for line in metrics.splitlines() if line.startswith(series))
    return [float(line.rsplit(" ", 1)[1]) for line in lines]
