"""Scrape as Prometheus does, over HTTP, and look series up by name and labels."""

from __future__ import annotations

import asyncio
import ssl
import urllib.request
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

Scraped = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def fetch(address: str, tls: ssl.SSLContext | None = None) -> str:
    """The text of one scrape."""
    scheme = "http" if tls is None else "https"
    with urllib.request.urlopen(f"{scheme}://{address}/metrics", timeout=20, context=tls) as answer:
        return answer.read().decode()


def parse(text: str) -> Scraped:
    """Series by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def scrape(address: str, tls: ssl.SSLContext | None = None) -> Scraped:
    """Not on the event loop."""
    return parse(await asyncio.to_thread(fetch, address, tls))


def series(scraped: Scraped, name: str, **labels: str) -> float:
    """One series; the labels must be all it has."""
    return scraped[name, frozenset(labels.items())]
