"""Numbers in Prometheus' text format, for every program that is scraped."""

from collections.abc import Iterable, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Row = tuple[tuple[str, ...], float]
"""Values of labels, and the value."""


def page(families: Iterable[Metric]) -> bytes:
    """What Prometheus scrapes (text format 0.0.4), UTF-8."""
    registry = CollectorRegistry()
    registry.register(_Told(list(families)))
    return generate_latest(registry)


def gauge(name: str, text: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    """A family of the metric `kairos_NAME`."""
    family = GaugeMetricFamily(f"kairos_{name}", text, labels=labels)
    for values, value in rows:
        family.add_metric(values, float(value))
    return family


def counter(name: str, text: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    """A family of the metric `kairos_NAME_total`."""
    family = CounterMetricFamily(f"kairos_{name}", text, labels=labels)
    for values, value in rows:
        family.add_metric(values, float(value))
    return family


def histogram(
    name: str,
    text: str,
    labels: Sequence[str],
    bounds: Sequence[float],
    rows: Iterable[tuple[tuple[str, ...], Sequence[int], float]],
) -> Metric:
    """A family of the metrics `kairos_NAME_bucket`, `_count` and `_sum`.

    rows: values of labels, how many samples were in each bucket (one more than there are bounds:
    the last holds those above), and the sum of all samples.
    """
    family = HistogramMetricFamily(f"kairos_{name}", text, labels=labels)
    for values, counts, total in rows:
        cumulative, buckets = 0, []
        for bound, count in zip([*map(str, bounds), "+Inf"], counts, strict=True):
            cumulative += count
            buckets.append((bound, float(cumulative)))
        family.add_metric(values, buckets, total)
    return family


class _Told(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families
