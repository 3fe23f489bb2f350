"""The policies by name. A list; no behaviour."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coordinator.scheduler.eqspec import EqSpec, StaticEqSpec
from coordinator.scheduler.exspec import ExSpec, PaperExSpec
from coordinator.scheduler.policy import Policy

POLICIES: Mapping[str, Callable[[], Policy]] = {
    policy.name: policy for policy in (EqSpec, ExSpec, StaticEqSpec, PaperExSpec)
}
