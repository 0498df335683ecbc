"""Serve mnemorank with Ray Serve: `serve run mnemorank.integrations.ray_serve:app`.

Each replica is the whole server of `mnemorank serve`, with its own model, queue and score cache. What replicas share is
on paths and in databases that all machines see: the registry, which all follow, the feedback store, prepared memories.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterable
from typing import Any

import ray
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from pydantic import ValidationError
from ray import serve
from ray.exceptions import RayError

from mnemorank._internal.config import input_error
from mnemorank.server.app import create_app
from mnemorank.server.observability import Metrics
from mnemorank.server.settings import ServerSettings

logger = logging.getLogger(__name__)

_HUB = "mnemorank-metrics"
_NAMESPACE = "mnemorank"
# A resource that only the head node has: no other machine takes the sums with it when it is lost.
_ON_HEAD = {"node:__internal_head__": 0.001}
_REPORT_SECONDS = 2.0
# A replica that has been silent for longer is gone: its counters stay, its gauges do not.
_GONE_SECONDS = 15.0


@serve.deployment(name="mnemorank", ray_actor_options={"num_cpus": 1})
@serve.ingress()
class Server:
    """A replica. Its number, cores and limits are set in serve.yaml.

    :param settings: those of `mnemorank serve`; environment variables such as MNEMORANK_STORE count, too.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = ServerSettings(**settings)

    def __serve_build_asgi_app__(self) -> Any:
        app = create_app(self._settings)
        share_metrics(app.state.metrics)
        return app


def app(settings: dict[str, Any]) -> Any:
    """Return the application, with `settings` from the `args` of serve.yaml or the command line."""
    settings = {"threads": 1, **settings}
    try:
        ServerSettings(**settings).check_auth()  # fail here and not in every replica
    except ValidationError as error:
        raise input_error(error, ServerSettings) from None
    deployment: Any = Server
    return deployment.bind(settings)


class MetricsHub:
    """Sums the metrics of all replicas. An actor."""

    def __init__(self) -> None:
        self._reports: dict[str, tuple[float, str]] = {}

    def report(self, replica: str, text: str) -> str:
        """Take the metrics of a replica, and return those of all."""
        now = time.monotonic()
        self._reports[replica] = (now, text)
        return sum_metrics((report, now - at > _GONE_SECONDS) for at, report in self._reports.values())


def sum_metrics(reports: Iterable[tuple[str, bool]]) -> str:
    """Return the sum of metrics in Prometheus's text format.

    :param reports: of each replica, with whether it is gone.
    """
    families: dict[str, Metric] = {}
    sums: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for text, is_gone in reports:
        for family in text_string_to_metric_families(text):
            if family.type == "gauge" and (is_gone or family.name.endswith("_share")):
                continue  # shares do not add up, and follow from the counters
            families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            values = sums.setdefault(family.name, {})
            for sample in family.samples:
                # When a counter began differs between replicas, and cannot be summed.
                if not sample.name.endswith("_created"):
                    key = sample.name, tuple(sample.labels.items())
                    values[key] = values.get(key, 0.0) + sample.value
    for name, family in families.items():
        for (sample_name, labels), value in sums[name].items():
            family.add_sample(sample_name, dict(labels), value)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families.values()))
    return generate_latest(registry).decode()


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def share_metrics(metrics: Metrics) -> None:
    """Let `/metrics` return the sum over all replicas, whichever answers; a few seconds old."""
    own_text, replica = metrics.text, uuid.uuid4().hex
    latest: list[bytes] = []

    def report() -> None:
        while True:
            try:
                hub = ray.remote(num_cpus=0, resources=_ON_HEAD)(MetricsHub).options(
                    name=_HUB, namespace=_NAMESPACE, get_if_exists=True, lifetime="detached", max_restarts=-1
                )
                latest[:] = [ray.get(hub.remote().report.remote(replica, own_text().decode()), timeout=10).encode()]
            except RayError as error:
                latest.clear()  # own metrics are better than old sums
                logger.warning("metrics could not be summed: %s", type(error).__name__)
            time.sleep(_REPORT_SECONDS)

    metrics.text = lambda: latest[0] if latest else own_text()  # type: ignore[method-assign]
    threading.Thread(target=report, name="mnemorank-metrics", daemon=True).start()
