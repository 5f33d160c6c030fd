"""Writes docs/metrics.md from the catalogue: `python -m api.metrics.document`, or `make docs`."""

from collections.abc import Iterator
from pathlib import Path

from api.metrics.catalogue import MOST_TENANTS, MOST_WORKERS, SECTIONS
from api.metrics.family import Family

TARGET = Path(__file__).parents[2] / "docs" / "metrics.md"
HEAD = f"""# Metrics

`GET /metrics`, in Prometheus' text format. Written from `api/metrics/catalogue.py` by `make docs`; do not edit.

* Every API process tells the same, and a restart loses nothing: state is read from Redis, and what only a process knows is added
  up there once a second ([ADR 11](adr/0011-metrics-in-redis.md)). So scrape one address, or all of them and take the
  `max without (instance)`; a sum over instances counts everything several times.
* Where API keys are on, a scrape needs one (`authorization` in prometheus.yml). One without the `admin` scope sees the name of its own tenant
  only, all others as `other`.
* Pools, routes and reasons are as many as are configured. Workers are at most {MOST_WORKERS} a pool, tenants the {MOST_TENANTS} that used
  most GPU time; the others are one tenant, `other`.
* What to look at: [observing.md](observing.md). Dashboards and rules: `deploy/grafana/`, `deploy/prometheus/`.
"""


def render() -> str:
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield HEAD
    for section, families in SECTIONS.items():
        yield from (f"## {section}", "| metric | type | labels | meaning |", "|---|---|---|---|")
        yield from map(_row, families)
        yield ""


def _row(family: Family) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"| `{family.name}` | {family.kind} | {labels} | {family.help} |"


if __name__ == "__main__":
    TARGET.write_text(render(), "utf-8")
