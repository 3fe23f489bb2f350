"""What is known of a model and its tokenizer once a worker has loaded them, and whether two fit.

Values and their comparison only; loading is `exspec.engine.loading`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What a model's makers advise for parameters a request leaves out (generation_config.json).

    None: they say nothing.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A loaded model, as a worker announces it.

    `name` is the served name. `vocab_size` counts rows of the output head, which models pad
    freely; `tokenizer_size` counts the tokenizer's ids. `tokenizer_sha256` is
    `vocabulary_sha256` of the tokenizer, "" when the model has none or fits any (n-gram).
    `max_length` is the most tokens (prompt included) one sequence may hold. `fingerprint` changes
    with the weights, the configuration or the dtype.
    """

    name: str
    architecture: str
    vocab_size: int
    tokenizer_size: int
    tokenizer_sha256: str
    max_length: int
    stop_token_ids: tuple[int, ...]
    dtype: str
    device: str
    num_parameters: int
    fingerprint: str
    generation: GenerationDefaults = GenerationDefaults()


@dataclass(frozen=True, slots=True)
class TokenizerAssets:
    """A tokenizer as data: what the coordinator needs to turn text into ids and back.

    `tokenizer_json` is the `tokenizers` library's own format ("" when the model has no tokenizer,
    so that only token ids are served). `special_tokens` maps template variables ("bos_token",
    "eos_token", …) to their text.
    """

    tokenizer_json: str
    chat_template: str = ""
    special_tokens: Mapping[str, str] = field(default_factory=dict[str, str])


def vocabulary_sha256(vocabulary: Mapping[str, int]) -> str:
    """Hash of the (id, token) pairs in id order: equal hashes mean interchangeable token ids."""
    digest = sha256()
    for token, token_id in sorted(vocabulary.items(), key=lambda item: (item[1], item[0])):
        encoded = token.encode("utf-8", "surrogatepass")
        digest.update(f"{token_id}:{len(encoded)}:".encode())
        digest.update(encoded)
    return digest.hexdigest()


def misfit(draft: ModelFacts, target: ModelFacts) -> str | None:
    """Why `draft` cannot draft for `target`, or None if it can.

    Padded vocabularies of different size fit (151,936 and 152,064 rows over one tokenizer); another
    tokenizer does not. A draft without a tokenizer of its own (n-gram) fits every target.
    """
    if not draft.tokenizer_sha256 or draft.tokenizer_sha256 == target.tokenizer_sha256:
        return None
    return (
        f"draft model {draft.name!r} (tokenizer of {draft.tokenizer_size} ids, sha256 "
        f"{draft.tokenizer_sha256[:12]}) and target model {target.name!r} (tokenizer of "
        f"{target.tokenizer_size} ids, sha256 {target.tokenizer_sha256[:12] or 'none'}) "
        "do not share one tokenizer"
    )
