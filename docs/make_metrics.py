"""Writes METRICS.md from the metrics that the code defines.

python docs/make_metrics.py            # write it
python docs/make_metrics.py --check    # 1 if it is not what this would write
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from coordinator import metrics, metrics_vllm
from exspec.core.metrics import Metric
from exspec.runtime import worker_metrics
from exspec.runtime.metrics import SNAPSHOT_AGE

DOCUMENT = Path(__file__).parent / "METRICS.md"

INTRODUCTION = """\
# Metrics

Every service serves them for Prometheus with `--metrics-port`: HTTP on loopback; with TLS files
HTTPS, for clients that show a certificate of the same authority. Workers are found by address, so
expect the name of their role (`server_name: worker.exspec.internal`, as in
[compose/prometheus/prometheus.yml](../compose/prometheus/prometheus.yml)).

Figures are taken once a second. Durations are seconds on one process's own clock. Written by
`docs/make_metrics.py`.

Beside these every process shows Prometheus's own `process_*`.
"""

SECTIONS = (
    ("Coordinator", metrics.METRICS),
    ("Workers", worker_metrics.METRICS),
    ("Every service", (SNAPSHOT_AGE,)),
    ("Coordinator, with `--metrics-compat vllm`", metrics_vllm.METRICS),
)


def document() -> str:
    """The whole file."""
    return INTRODUCTION + "".join(_section(title, listed) for title, listed in SECTIONS)


def _section(title: str, listed: tuple[Metric, ...]) -> str:
    rows = "".join(_row(metric) for metric in listed)
    return f"\n## {title}\n\n| Name | Kind | Labels | Meaning |\n|---|---|---|---|\n{rows}"


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.help} |\n"


def main(argv: Sequence[str]) -> int:
    """Write or check the file; 1 if it is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if it is stale")
    arguments = parser.parse_args(argv)
    text = document()
    if not arguments.check:
        DOCUMENT.write_text(text)
        return 0
    if DOCUMENT.exists() and DOCUMENT.read_text() == text:
        return 0
    sys.stderr.write(f"{DOCUMENT} is stale; run {Path(__file__).name}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
