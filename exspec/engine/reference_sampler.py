"""The judge of choices: one position of one sequence, by transformers' own processors, in float64.

Slow and plain on purpose. Shares nothing with `exspec.engine.choosing` but the definition of the
noise, so that it can find its faults. What transformers has no processor for is a loop here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from transformers import (
    LogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TypicalLogitsWarper,
)

from exspec.core.choosing import ChoiceRules, TokenLogprobs
from exspec.engine.reference_noise import gumbel_noise

_REMOVED = -float("inf")


class AllowsTokens(Protocol):
    """A grammar, asked anew at every position."""

    def allowed(self, generated: Sequence[int]) -> Sequence[int]:
        """The ids that may follow the `generated` tokens."""
        ...


class _TopP(LogitsProcessor):
    """transformers' `TopPLogitsWarper`, but for tokens that are equal at the border: it keeps any
    of them, this one those of the lowest ids.
    """

    def __init__(self, top_p: float) -> None:
        self._top_p = top_p

    def __call__(  # type: ignore[override]
        self,
        input_ids: torch.Tensor,  # noqa: ARG002
        scores: torch.Tensor,
    ) -> torch.Tensor:
        law, order = scores[0].softmax(dim=-1).tolist(), scores[0].tolist()
        before, removed = 0.0, list[int]()
        for token in sorted(range(len(law)), key=lambda token: (-order[token], token)):
            if before >= self._top_p:
                removed.append(token)
            before += law[token]
        return scores.index_fill(1, torch.tensor(removed, dtype=torch.int64), _REMOVED)


class ReferenceSampler:
    """What one sequence's rules make of the model's logits. Keeps nothing between positions."""

    def __init__(self, rules: ChoiceRules, grammar: AllowsTokens | None = None) -> None:
        """`grammar` is what `rules.grammar` means for the model's tokenizer."""
        self.rules = rules
        self._grammar = grammar

    def choose(self, logits: torch.Tensor, tokens: Sequence[int]) -> int | None:
        """The token after `tokens` (the whole log), given the model's logits `[vocab_size]`.

        None if the rules leave no token.
        """
        scores = self.scores(logits, tokens)
        best = scores.max()
        return None if best == _REMOVED else int((scores == best).nonzero()[0])

    def best_two(self, logits: torch.Tensor, tokens: Sequence[int]) -> tuple[int, int]:
        """The choice, and what comes next in `scores` (by its logit, if all else was removed)."""
        scores, masked = self.scores(logits, tokens), self.masked(logits, tokens)
        order = sorted(range(len(scores)), key=lambda i: (-scores[i], -masked[i], i))
        return order[0], order[1]

    def scores(self, logits: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
        """`[vocab_size]` float64, the largest is the choice; minus infinity: removed."""
        scores = self.masked(logits, tokens)
        if not self.rules.temperature or bool((scores == _REMOVED).all()):
            return scores
        noise = torch.full_like(scores, _REMOVED)
        kept = self.log_law(logits, tokens)
        ids = (kept > _REMOVED).nonzero()[:, 0]
        drawn = gumbel_noise(self.rules.seed, len(tokens), ids.tolist())
        noise[ids] = torch.tensor(drawn, dtype=torch.float64)
        return kept + noise

    def log_law(self, logits: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
        """Log probabilities `[vocab_size]` of what is drawn from, when something is drawn."""
        scores = self.masked(logits, tokens)[None]
        for warper in self._warpers():
            scores = warper(torch.tensor([list(tokens)]), scores)  # type: ignore[arg-type]
        return scores[0].log_softmax(dim=-1)

    def masked(self, logits: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
        """Logits `[vocab_size]` with bias and penalties, and without what may not be chosen."""
        scores = logits.detach().to("cpu", torch.float64).clone()
        for token, bias in self.rules.logit_bias:
            scores[token] += bias
        scores = self._penalised(scores, tokens)
        forbidden = SuppressTokensLogitsProcessor(list(self._forbidden(tokens, len(scores))))
        ids = torch.tensor([list(tokens)])
        scores = forbidden(ids, scores[None])  # type: ignore[arg-type]
        if self.rules.bad_words:
            words = [list(word) for word in self.rules.bad_words]
            scores = NoBadWordsLogitsProcessor(words)(ids, scores)  # type: ignore[arg-type]
        return scores[0]

    def logprobs(self, logits: torch.Tensor, token: int, num_top: int) -> TokenLogprobs:
        """What the model itself says of a token, and its `num_top` likeliest ones."""
        law = logits.detach().to("cpu", torch.float64).log_softmax(dim=-1).tolist()
        likeliest = sorted(range(len(law)), key=lambda other: (-law[other], other))[:num_top]
        return TokenLogprobs(token, law[token], tuple((other, law[other]) for other in likeliest))

    def _penalised(self, scores: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
        rules = self.rules
        if rules.repetition_penalty != 1:
            repetition = RepetitionPenaltyLogitsProcessor(float(rules.repetition_penalty))
            scores = repetition(torch.tensor([list(tokens)]), scores[None])[0]  # type: ignore[arg-type]
        for token, count in Counter(tokens[rules.num_prompt_tokens :]).items():
            scores[token] -= rules.frequency_penalty * count
            scores[token] -= rules.presence_penalty
        return scores

    def _forbidden(self, tokens: Sequence[int], vocab_size: int) -> set[int]:
        """Ids that may not come next, bad words apart."""
        rules, everything = self.rules, set(range(vocab_size))
        generated = tokens[rules.num_prompt_tokens :]
        forbidden = set(rules.banned_token_ids)
        if rules.allowed_token_ids:
            forbidden |= everything - set(rules.allowed_token_ids)
        if len(generated) < rules.min_tokens:
            forbidden |= set(rules.ending_token_ids)
        if self._grammar is not None:
            forbidden |= everything - set(self._grammar.allowed(generated))
        return forbidden

    def _warpers(self) -> Iterator[LogitsProcessor]:
        rules = self.rules
        yield TemperatureLogitsWarper(float(rules.temperature))
        if rules.top_k > 0:
            yield TopKLogitsWarper(rules.top_k)
        if rules.top_p < 1:
            yield _TopP(rules.top_p)
        if rules.min_p > 0:
            yield MinPLogitsWarper(rules.min_p)
        if rules.typical_p < 1:
            yield TypicalLogitsWarper(rules.typical_p)
