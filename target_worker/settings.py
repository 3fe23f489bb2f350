"""What a target worker can be told."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from exspec.runtime.settings import ModelWorkerSettings


class TargetSettings(ModelWorkerSettings):
    """Serve a target model: it decides every token and verifies what drafts propose."""

    model_config = SettingsConfigDict(cli_prog_name="exspec serve target")

    model: str = Field(
        "smollm2-135m-instruct",
        description="Hugging Face name, directory, or GGUF file; smollm2-135m-instruct is the "
        "default pair's target.",
    )
    max_num_seqs: int = Field(
        8, ge=1, le=1024, description="Sequences held at once; KV is preallocated for them."
    )
