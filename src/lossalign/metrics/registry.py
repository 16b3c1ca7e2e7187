"""Metrics by name. Each metric is registered in the file that defines it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lossalign.core import InputError, Registry
from lossalign.metrics.base import Metric


@dataclass(frozen=True, kw_only=True)
class MetricEntry:
    """An entry of the registry.

    Args:
        make: makes the metric of the plain name; None if the name needs an argument.
        prefix: prefix of names with an argument, numbers or a file; empty: there are none.
        carrying: makes the metric from that argument.
        example: a name with an argument.
    """

    make: Callable[[], Metric] | None = None
    prefix: str = ""
    carrying: Callable[[str], Metric] | None = None
    example: str = ""


METRICS: Registry[MetricEntry] = Registry("metric", hint="module:attribute for a metric of your own")


def registered_metric(name: str) -> Metric | None:
    """The registered metric called ``name``; None if there is none.

    Example:
        >>> registered_metric("recall@1,10").name
        'recall@1,10'
    """
    if name in METRICS and (make := METRICS[name].make) is not None:
        return make()
    for known in METRICS:
        entry = METRICS[known]
        if entry.carrying is not None and name.startswith(entry.prefix):
            return _carrying(name, entry.carrying, entry)
        if name.partition(":")[0] == known:
            raise InputError(f"metric {name!r}: write {entry.example or known!r}.")
    return None


def _carrying(name: str, make: Callable[[str], Metric], entry: MetricEntry) -> Metric:
    try:
        return make(name.removeprefix(entry.prefix))
    except InputError:
        raise
    except ValueError as cause:
        raise InputError(f"metric {name!r}: write its numbers as in {entry.example!r}.") from cause
