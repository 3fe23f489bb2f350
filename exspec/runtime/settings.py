"""How a process reads its settings: command line, then environment (EXSPEC_…), then default.

Read once, in `__main__`, frozen, and handed down. The settings every service shares are here;
each service adds its own in its `settings.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Literal, NoReturn, TypeVar

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, CliApp, SettingsConfigDict

EXIT_USAGE = 2


class ServiceSettings(BaseSettings):
    """What every service can be told."""

    model_config = SettingsConfigDict(
        env_prefix="EXSPEC_",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_avoid_json=True,
        frozen=True,
        extra="forbid",
    )

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(0, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    allow_insecure_bind: bool = Field(
        default=False,
        description="Listen in plain text beyond loopback: whoever reaches the port can use it.",
    )
    ssl_certfile: str = Field(
        "", description="PEM file with the certificate of this service; empty: plain text."
    )
    ssl_keyfile: str = Field("", description="PEM file with the key of the certificate.")
    ssl_ca_certs: str = Field(
        "", description="PEM file with the authority that peers' certificates must be signed by."
    )
    reflection: bool = Field(
        default=True,
        description="Let callers list the services (gRPC reflection). With TLS: only if asked for.",
    )
    metrics_host: str = Field("127.0.0.1", description="Address to serve metrics on.")
    metrics_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port for Prometheus (HTTP; HTTPS with client certificates if TLS files are "
        "given); 0 takes a free one. Default: none.",
    )
    grace_seconds: float = Field(
        10.0, ge=0, description="Seconds that running calls get when the process is told to stop."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe lines to log."
    )
    log_format: Literal["text", "json"] = Field("text", description="How log lines look.")
    port_file: str = Field(
        "",
        description="File to write the address listened on to, once it is known; a second port's "
        "goes on a second line. Empty: none.",
    )

    @model_validator(mode="after")
    def _certificates_make_sense(self) -> ServiceSettings:
        given = (self.ssl_certfile, self.ssl_keyfile, self.ssl_ca_certs)
        if any(given) and not all(given):
            raise ValueError(
                "--ssl-certfile, --ssl-keyfile and --ssl-ca-certs: give all three, or none"
            )
        return self

    @property
    def has_tls(self) -> bool:
        """Whether ports speak TLS."""
        return bool(self.ssl_certfile)

    @property
    def has_reflection(self) -> bool:
        """Whether callers may list the services."""
        is_asked_for = "reflection" in self.model_fields_set
        return self.reflection and (is_asked_for or not self.has_tls)


class WorkerSettings(ServiceSettings):
    """What every worker can be told."""

    coordinator: str = Field(
        "127.0.0.1:50050",
        description="host:port of the coordinator to register with: its cluster port, or its only "
        "one.",
    )
    advertise: str = Field(
        "",
        description="host:port at which the coordinator reaches this worker; empty: the address "
        "listened on.",
    )
    worker_id: str = Field(
        "", max_length=128, description="Stable name of this worker; empty: drawn at start."
    )
    orphan_seconds: float = Field(
        600.0, gt=0, description="Seconds after which a sequence nobody asked for is forgotten."
    )


class ModelWorkerSettings(WorkerSettings):
    """What a worker that holds a model can be told."""

    revision: str | None = Field(None, description="Revision on the Hugging Face hub.")
    gguf_file: str | None = Field(None, description="GGUF file inside the model directory.")
    dtype: Literal["auto", "float32", "float16", "bfloat16", "float64"] = Field(
        "auto", description="Element type; auto: float32 on a CPU, else the checkpoint's."
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:0, mps …")
    trust_remote_code: bool = Field(
        default=False, description="Run Python code that comes with the model."
    )
    served_model_name: str | None = Field(
        None, description="Name that requests use; default: the model's own."
    )
    max_model_len: int | None = Field(
        None,
        ge=2,
        description="Most tokens per sequence, prompt included; default: 2048 or what "
        "the model takes, whichever is less.",
    )
    kv_layout: Literal["slots", "padded"] = Field(
        "slots", description="How the KV cache is laid out; padded is the paper's."
    )
    num_threads: int | None = Field(
        None,
        ge=1,
        description="CPU threads for the model, of each process of it; default: torch's own "
        "choice, shared out.",
    )
    tensor_parallel: int = Field(
        1,
        ge=1,
        description="Processes that share the model, each with a part of every layer on a device "
        "of its own; must divide its KV heads.",
    )
    device_map: str = Field(
        "",
        description="Put layers on several devices of this process: auto, balanced, sequential, "
        "or JSON from module names to devices; empty: all on one device.",
    )

    @field_validator("device_map")
    @classmethod
    def _one_way_to_spread(cls, value: str, values: ValidationInfo) -> str:
        if value and values.data.get("tensor_parallel", 1) > 1:
            raise ValueError("cannot be combined with --tensor-parallel")
        return value


S = TypeVar("S", bound=ServiceSettings)


def load_settings(settings_class: type[S], argv: Sequence[str]) -> S:
    """Read settings from a command line and the environment; exits with 2 when they are bad.

    `--help` is answered here, without loading anything heavy.
    """
    try:
        return CliApp.run(settings_class, cli_args=list(argv))
    except ValidationError as error:
        _explain(error, settings_class.model_config.get("cli_prog_name") or "exspec")


def _explain(error: ValidationError, prog: str) -> NoReturn:
    for problem in error.errors():
        own = problem.get("ctx", {}).get("error")
        message = problem["msg"] if own is None else str(own)
        if problem["loc"]:
            name = "--" + ".".join(str(part) for part in problem["loc"]).replace("_", "-")
            message = f"{name}: {message} (got {problem.get('input')!r})"
        sys.stderr.write(f"{prog}: {message}\n")
    raise SystemExit(EXIT_USAGE)
