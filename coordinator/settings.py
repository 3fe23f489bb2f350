"""What a coordinator can be told."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from coordinator.scheduler import rules
from coordinator.scheduler.limits import SchedulerLimits
from exspec.runtime.settings import ServiceSettings


class CoordinatorSettings(ServiceSettings):
    """Serve clients: schedule rounds, keep the token log, send work to registered workers."""

    model_config = SettingsConfigDict(cli_prog_name="exspec serve coordinator")

    port: int = Field(50050, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    cluster_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port for workers and operators; 0 takes a free one. Default: they use --port, "
        "which they cannot with TLS or API keys.",
    )
    api_keys_file: str = Field(
        "",
        description="File of the clients' API keys, made by `exspec keys add`; empty: nobody needs "
        "one.",
    )
    policy: Literal["eqspec", "exspec", "eqspec-static", "exspec-paper"] = Field(
        "exspec",
        description="exspec keeps as many groups of rows in play as pay; eqspec runs all "
        "of them in lockstep; eqspec-static (no refill) and exspec-paper (full groups of one "
        "length only, no ageing) are the paper's, for study.",
    )
    batch_size: int = Field(
        32,
        ge=1,
        le=1024,
        description="Most rows a target verifies in one batch; its own slots bound it too.",
    )
    window_size: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="Most sequences in play on a target, the exspec policies' window; its own "
        "slots bound it too. Default: the batch size.",
    )
    max_wait_rounds: int | None = Field(
        None,
        ge=0,
        description="Rounds a target may begin without a sequence that is ready. Default: 8, or "
        "twice what the window needs if that is more.",
    )
    max_batches_in_flight: int = Field(
        2, ge=1, le=16, description="Batches sent to one worker and not answered yet."
    )
    num_speculative_tokens: str = Field(
        rules.AUTO,
        coerce_numbers_to_str=True,
        description=f"Draft tokens per row and round, unless a request gives its own number: "
        f"{rules.HELP}.",
    )
    generation_config: Literal["auto", "none"] = Field(
        "auto",
        description="What decides parameters that a request leaves out: auto: the model's "
        "generation_config.json; none: nothing, decoding is greedy then.",
    )
    max_prefill_tokens: int = Field(
        512,
        ge=1,
        description="Prompt tokens in a verify batch that nobody waits for; longer prompts go in "
        "chunks.",
    )
    max_mixed_prefill_tokens: int | None = Field(
        None,
        ge=1,
        description="Prompt tokens in a verify batch that also decides tokens. Default: as many as "
        "make the pass take about three times as long.",
    )
    max_waiting: int = Field(
        1024,
        ge=0,
        description="Most requests per model that may wait for a place; more are refused.",
    )
    max_client_requests: int | None = Field(
        None,
        ge=1,
        description="Most generations, running or waiting, that one client (API key, else host) "
        "may have; more are refused. Default: as many as there are.",
    )
    slow_reader_seconds: float = Field(
        60.0,
        gt=0,
        description="Time a client may leave what it was sent unread before it is dropped.",
    )
    lease_seconds: float = Field(
        10.0, gt=0, description="Silence after which a worker is taken for lost."
    )
    draft_timeout_seconds: float = Field(
        5.0,
        gt=0,
        description="Time a draft worker gets for one batch before it is left out; it is tried "
        "again with a batch of its own, after a time that doubles.",
    )
    target_timeout_seconds: float = Field(
        300.0, gt=0, description="Time a target worker gets for one batch before it is left out."
    )
    unavailable_seconds: float = Field(
        30.0, ge=0, description="Time requests wait for a target when there is none."
    )
    metrics_compat: Literal["none", "vllm"] = Field(
        "none", description="Whose names metrics are shown under besides our own."
    )
    record_trace: str = Field(
        "",
        description="File to record the scheduler's events and commands in; empty: none. A second "
        "served model's go to the same name with .2 added, and so on.",
    )

    @field_validator("num_speculative_tokens")
    @classmethod
    def _can_be_read(cls, text: str) -> str:
        rules.speculation_rule(text)
        return text

    @model_validator(mode="after")
    def _limits_make_sense(self) -> CoordinatorSettings:
        _ = self.scheduler_limits
        return self

    @model_validator(mode="after")
    def _ports_make_sense(self) -> CoordinatorSettings:
        if self.cluster_port is None and (self.has_tls or self.api_keys_file):
            why = "--ssl-certfile" if self.has_tls else "--api-keys-file"
            raise ValueError(
                f"--cluster-port is needed with {why}: workers are not served on --port then"
            )
        if self.cluster_port and self.cluster_port == self.port:
            raise ValueError(f"--cluster-port and --port are both {self.port}; give two ports")
        return self

    @property
    def scheduler_limits(self) -> SchedulerLimits:
        """The bounds of the scheduler."""
        return SchedulerLimits(
            batch_size=self.batch_size,
            window_size=self.window_size,
            max_wait_rounds=self.max_wait_rounds,
            max_batches_in_flight=self.max_batches_in_flight,
            max_prefill_tokens=self.max_prefill_tokens,
            max_mixed_prefill_tokens=self.max_mixed_prefill_tokens,
        )
