"""What a coordinator can be told."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from exspec.core.params import MAX_SPECULATIVE_TOKENS
from exspec.runtime.settings import ServiceSettings


class CoordinatorSettings(ServiceSettings):
    """Serve clients: schedule rounds, keep the token log, send work to registered workers."""

    model_config = SettingsConfigDict(cli_prog_name="exspec serve coordinator")

    port: int = Field(50050, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    policy: Literal["eqspec"] = Field(
        "eqspec", description="Scheduler: eqspec runs a stable batch per target in lockstep."
    )
    batch_size: int = Field(
        32,
        ge=1,
        le=1024,
        description="Most rows a target verifies in one round; its own slots bound it too.",
    )
    num_speculative_tokens: int = Field(
        5,
        ge=0,
        le=MAX_SPECULATIVE_TOKENS,
        description="Draft tokens per row and round, unless a request gives its own number.",
    )
    max_prefill_tokens: int = Field(
        512, ge=1, description="Prompt tokens per verify batch; longer prompts go in chunks."
    )
    max_waiting: int = Field(
        1024, ge=0, description="Most requests that may wait for a place; more are refused."
    )
    lease_seconds: float = Field(
        10.0, gt=0, description="Silence after which a worker is taken for lost."
    )
    draft_timeout_seconds: float = Field(
        20.0, gt=0, description="Time a draft worker gets for one batch before it is left out."
    )
    target_timeout_seconds: float = Field(
        300.0, gt=0, description="Time a target worker gets for one batch before it is left out."
    )
    unavailable_seconds: float = Field(
        30.0, ge=0, description="Time requests wait for a target when there is none."
    )
    record_trace: str = Field(
        "", description="File to record the scheduler's events and commands in; empty: none."
    )
