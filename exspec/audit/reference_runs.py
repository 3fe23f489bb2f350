"""The judge of an audit: loads the served model here, decodes plainly, weighs differences. torch.

Everything runs with transformers' own cache and attention; none of our KV code has a part in it.
In float64 none of our code at all has: packed weights (`exspec.engine.packing`) are for float32.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import torch
import transformers
from transformers import PreTrainedModel

from exspec.audit.compare import Difference, Evidence
from exspec.audit.equality import Question
from exspec.audit.reference_cache import ReferenceCache, ReferenceKey
from exspec.core.errors import InvalidRequestError
from exspec.core.models import ModelFacts
from exspec.engine.kv.hf_adapter import native_attention
from exspec.engine.loading import LoadedModel, ModelSettings, load_model
from exspec.engine.reference import generate_plain, sampler_of
from exspec.engine.reference_margins import needed_change

_SAVE_EVERY = 8
_FLOAT64 = "float64"
_HALVES = ("float16", "bfloat16")
_NUMERICS = f"torch {torch.__version__}, transformers {transformers.__version__}"


class ReferenceDecoder:
    """Owns the model; from the first difference on also one in float64, and one as it is served."""

    def __init__(self, settings: ModelSettings, served_dtype: str, cache: ReferenceCache) -> None:
        """Load the model.

        Raises:
            ModelNotFoundError, UnsupportedModelError, InvalidRequestError: as `load_model`.
        """
        self._settings = settings
        self._loaded: LoadedModel = load_model(settings)
        self._served_dtype = served_dtype
        self._cache = cache
        self._models: dict[str, PreTrainedModel] = {self.facts.dtype: self._loaded.model}

    @property
    def facts(self) -> ModelFacts:
        """What is known of the model."""
        return self._loaded.facts

    def require_same_weights(self, served: ModelFacts) -> None:
        """InvalidRequestError if the served model is known to be another one.

        Fingerprints hold the dtype, so they can only be compared between equal ones.
        """
        own = self.facts
        if served.dtype == own.dtype and served.fingerprint != own.fingerprint:
            raise InvalidRequestError(
                f"the cluster serves {served.name!r} with fingerprint {served.fingerprint[:12]}, "
                f"the reference {own.name!r} has {own.fingerprint[:12]}: these are not the same "
                "weights; name the served model with --model",
                field="model",
            )

    def decode(
        self, question: Question, max_tokens: int, stop_token_ids: Collection[int]
    ) -> tuple[int, ...]:
        """Plain decoding of one prompt, or what it gave before."""
        key = ReferenceKey(
            fingerprint=self.facts.fingerprint,
            dtype=self.facts.dtype,
            numerics=_NUMERICS,
            prompt_tokens=question.prompt_tokens,
            max_tokens=max_tokens,
            stop_token_ids=tuple(sorted(stop_token_ids)),
            rules=question.rules,
        )
        known = self._cache.get(key)
        if known is not None:
            return known
        tokens = generate_plain(
            self._loaded, question.prompt_tokens, max_tokens, stop_token_ids, question.rules
        )
        self._cache.put(key, tokens)
        return tokens

    def decode_all(
        self,
        questions: Sequence[Question],
        max_tokens: int,
        stop_token_ids: Collection[int],
        on_done: Callable[[], None],
    ) -> tuple[tuple[int, ...], ...]:
        """All prompts one by one; saved on the way, so that an interrupted run can go on."""
        references: list[tuple[int, ...]] = []
        try:
            for number, question in enumerate(questions, start=1):
                references.append(self.decode(question, max_tokens, stop_token_ids))
                if number % _SAVE_EVERY == 0:
                    self._cache.save()
                on_done()
        finally:
            self._cache.save()
        return tuple(references)

    def weigh(self, question: Question, common: Sequence[int], difference: Difference) -> Evidence:
        """The logits after the prompt and the `common` tokens, in float64.

        The rounding error is measured along the positions that were decided before, and this one,
        in the dtype of the reference and in that of the cluster; the larger one counts.
        """
        assert difference.reference_token is not None
        assert difference.served_token is not None
        tokens = [*question.prompt_tokens, *common]
        num_positions = len(common) + 1
        exact = _last_logits(self._exact_model(), tokens, num_positions)
        errors = [
            (_last_logits(self._model_in(dtype), tokens, num_positions).double() - exact)
            .abs()
            .max()
            for dtype in {self.facts.dtype, self._served_dtype}
        ]
        sampler = sampler_of(self._loaded, len(question.prompt_tokens), question.rules)
        best, second = sampler.best_two(exact[-1], tokens)
        margin, reference_gap, served_gap = (
            needed_change(sampler, exact[-1], tokens, token)
            for token in (second, difference.reference_token, difference.served_token)
        )
        return Evidence(
            best_token=best,
            second_token=second,
            margin=margin,
            reference_gap=reference_gap,
            served_gap=served_gap,
            rounding_error=max(float(error) for error in errors),
        )

    def _model_in(self, dtype: str) -> PreTrainedModel:
        """The model in a dtype, loaded when it is first asked for."""
        if dtype not in self._models:
            self._models[dtype] = load_model(replace(self._settings, dtype=dtype)).model
        return self._models[dtype]

    def _exact_model(self) -> PreTrainedModel:
        """The reference's own weights in float64.

        From float32 on a checkpoint is loaded without rounding; below, the rounded weights are the
        model that is judged.
        """
        if self.facts.dtype in _HALVES and _FLOAT64 not in self._models:
            rounded = load_model(self._settings).model
            self._models[_FLOAT64] = rounded.double()
        return self._model_in(_FLOAT64)


@torch.inference_mode()
def _last_logits(model: PreTrainedModel, tokens: Sequence[int], num_positions: int) -> torch.Tensor:
    """Logits `[num_positions, vocab_size]` after the last tokens."""
    arguments: dict[str, object] = {"use_cache": False}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        arguments["logits_to_keep"] = num_positions
    with native_attention(model):
        output = model(input_ids=torch.tensor([list(tokens)], device=model.device), **arguments)
    return output.logits[0, -num_positions:]
