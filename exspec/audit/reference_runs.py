"""The judge of an audit: loads the served model here, decodes plainly, weighs differences. torch.

Everything runs with transformers' own cache and attention; none of our KV code has a part in it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Sequence

import torch
import transformers
from transformers import PreTrainedModel

from exspec.audit.compare import Difference, Evidence
from exspec.audit.reference_cache import ReferenceCache, ReferenceKey
from exspec.core.errors import InvalidRequestError
from exspec.core.models import ModelFacts
from exspec.engine.kv.hf_adapter import native_attention
from exspec.engine.loading import LoadedModel, ModelSettings, load_model
from exspec.engine.reference import generate_plain

_SAVE_EVERY = 8
_NUMERICS = f"torch {torch.__version__}, transformers {transformers.__version__}"


class ReferenceDecoder:
    """Owns the model, and from the first difference on a float64 copy of it."""

    def __init__(self, settings: ModelSettings, cache: ReferenceCache) -> None:
        """Load the model.

        Raises:
            ModelNotFoundError, UnsupportedModelError, InvalidRequestError: as `load_model`.
        """
        self._loaded: LoadedModel = load_model(settings)
        self._cache = cache
        self._exact_model: PreTrainedModel | None = None

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
        self, prompt_tokens: tuple[int, ...], max_tokens: int, stop_token_ids: Collection[int]
    ) -> tuple[int, ...]:
        """Plain greedy decoding of one prompt, or what it gave before."""
        key = ReferenceKey(
            fingerprint=self.facts.fingerprint,
            dtype=self.facts.dtype,
            numerics=_NUMERICS,
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            stop_token_ids=tuple(sorted(stop_token_ids)),
        )
        known = self._cache.get(key)
        if known is not None:
            return known
        tokens = generate_plain(self._loaded, prompt_tokens, max_tokens, stop_token_ids)
        self._cache.put(key, tokens)
        return tokens

    def decode_all(
        self,
        prompts: Sequence[tuple[int, ...]],
        max_tokens: int,
        stop_token_ids: Collection[int],
        on_done: Callable[[], None],
    ) -> tuple[tuple[int, ...], ...]:
        """All prompts one by one; saved on the way, so that an interrupted run can go on."""
        references: list[tuple[int, ...]] = []
        try:
            for number, prompt in enumerate(prompts, start=1):
                references.append(self.decode(prompt, max_tokens, stop_token_ids))
                if number % _SAVE_EVERY == 0:
                    self._cache.save()
                on_done()
        finally:
            self._cache.save()
        return tuple(references)

    def weigh(
        self, prompt_tokens: Sequence[int], common: Sequence[int], difference: Difference
    ) -> Evidence:
        """The logits after the prompt and the `common` tokens, in float64.

        The rounding error is measured along the positions that were decided before, and this one.
        """
        assert difference.reference_token is not None
        assert difference.served_token is not None
        tokens = [*prompt_tokens, *common]
        num_positions = len(common) + 1
        rounded = _last_logits(self._loaded.model, tokens, num_positions)
        exact = _last_logits(self._exact(), tokens, num_positions)
        top = exact[-1].topk(2)
        best, second = top.indices.tolist()
        return Evidence(
            best_token=best,
            second_token=second,
            margin=float(top.values[0] - top.values[1]),
            reference_gap=float(top.values[0] - exact[-1, difference.reference_token]),
            served_gap=float(top.values[0] - exact[-1, difference.served_token]),
            rounding_error=float((rounded.double() - exact).abs().max()),
        )

    def _exact(self) -> PreTrainedModel:
        """The same weights, not those of the checkpoint, which may have been rounded on loading."""
        if self._exact_model is None:
            self._exact_model = copy.deepcopy(self._loaded.model).double()
        return self._exact_model


@torch.inference_mode()
def _last_logits(
    model: PreTrainedModel, tokens: Sequence[int], num_positions: int
) -> torch.Tensor:
    """Logits `[num_positions, vocab_size]` after the last tokens."""
    arguments: dict[str, object] = {"use_cache": False}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        arguments["logits_to_keep"] = num_positions
    with native_attention(model):
        output = model(input_ids=torch.tensor([list(tokens)], device=model.device), **arguments)
    return output.logits[0, -num_positions:]
