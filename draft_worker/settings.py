"""What a draft worker can be told."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from exspec.runtime.settings import ModelWorkerSettings

NGRAM = "ngram"
"""Name of the draft that needs no model: prompt look-up."""


class DraftSettings(ModelWorkerSettings):
    """Serve a draft model: it proposes tokens; losing it costs speed, never a request."""

    model_config = SettingsConfigDict(cli_prog_name="exspec serve draft")

    model: str = Field(
        "smollm2-draft",
        description="Hugging Face name, directory, or GGUF file; smollm2-draft is the default "
        "pair's draft; ngram looks tokens up in the prompt and needs no model.",
    )
    max_num_seqs: int = Field(
        32, ge=1, le=1024, description="Sequences held at once; KV is preallocated for them."
    )
    draft_for: str = Field(
        "",
        max_length=512,
        description="Served name of the target model to draft for; empty: whichever it fits, the "
        "one with the fewest draft workers first.",
    )
    lookup: Literal["beside", "off"] = Field(
        "beside",
        description="Look tokens up in the prompt and the answer so far beside a draft model: per "
        "row and round, whichever is expected to do better is proposed, or the model's "
        "tokens and a looked-up tail; for greedy requests the model's choices are also weighed "
        "against what followed before. off: the model alone, as always with --draft-ahead.",
    )
    draft_min_chance: float = Field(
        0.3,
        ge=0,
        lt=1,
        description="For a greedy request the model drafts no more once all it proposed is right "
        "with less than this chance, by the probabilities and by how often those were borne "
        "out; 0: it drafts all that is asked for. Not with --lookup off. The output is the same.",
    )
    ngram_max: int = Field(4, ge=1, le=16, description="Longest run of tokens that is looked up.")
    ngram_min: int = Field(1, ge=1, le=16, description="Shortest run of tokens that is looked up.")
    draft_ahead: int = Field(
        0,
        ge=0,
        le=64,
        description="Tokens to draft beyond the proposals while no batch waits, guessing that all "
        "are accepted; 0: none. With one more than is proposed in a round, a right guess leaves "
        "nothing to do. For a draft on a processor of its own: on one shared with a target it "
        "takes time from the target. Not for ngram.",
    )

    draft_sample_method: Literal["shared", "greedy"] = Field(
        "shared",
        description="How to draft for requests that sample: shared draws with the noise the target "
        "will draw with, so that drafts are accepted about as often as greedy ones; greedy takes "
        "the likeliest token, and is accepted the less the higher the temperature. The output is "
        "the same. The n-gram draft looks tokens up either way.",
    )

    draft_vocab: str = Field(
        "",
        max_length=4096,
        description="Tokens the draft chooses among, which makes it cheaper and never changes the "
        "output: a JSON file (a list of token ids, or an object with such a list as token_ids), a "
        "number N (special tokens, and the likeliest as the tokenizer tells), or all; empty: what "
        "the model brings in draft_vocab.json. Not for ngram.",
    )

    draft_weights: Literal["auto", "int8", "bfloat16", "full", "modules"] = Field(
        "auto",
        description="Weights a draft of the Llama family (Llama, Mistral, Qwen2, Qwen3) computes "
        "with on a CPU, in a forward pass made for drafting: eight bits, bfloat16, or as they are; "
        "auto: eight bits where the processor is fast at them. modules: transformers' own modules, "
        "as all other drafts run. The output is the same; fewer bits cost a little acceptance.",
    )

    @field_validator("model")
    @classmethod
    def _ngram_is_no_model(cls, value: str, values: ValidationInfo) -> str:
        if value == NGRAM and values.data.get("tensor_parallel", 1) > 1:
            raise ValueError("the n-gram draft cannot be shared with --tensor-parallel")
        return value

    @field_validator("draft_ahead")
    @classmethod
    def _needs_a_model(cls, value: int, values: ValidationInfo) -> int:
        if value and values.data.get("model") == NGRAM:
            raise ValueError("the n-gram draft does not draft ahead")
        return value

    @field_validator("draft_vocab")
    @classmethod
    def _at_least_one_token(cls, value: str, values: ValidationInfo) -> str:
        if value and values.data.get("model") == NGRAM:
            raise ValueError("the n-gram draft has no vocabulary to cut")
        if value[value.startswith(("+", "-")) :].isdecimal() and int(value) < 1:
            raise ValueError("at least 1 token is needed")
        return value
