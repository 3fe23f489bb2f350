"""Messages about how tokens are chosen and what is said of them, to our values and back.

Between coordinator and workers. Nothing is checked but what values of these types cannot hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from exspec.core.choosing import ChoiceRules, Grammar, GrammarKind, TokenLogprobs
from exspec.core.errors import ProtocolError
from exspec.v1 import common_pb2 as pb

_KINDS = {
    GrammarKind.JSON_SCHEMA: pb.GRAMMAR_KIND_JSON_SCHEMA,
    GrammarKind.REGEX: pb.GRAMMAR_KIND_REGEX,
    GrammarKind.LARK: pb.GRAMMAR_KIND_LARK,
}
_KINDS_BACK = {value: key for key, value in _KINDS.items()}


def rules_to_message(rules: ChoiceRules) -> pb.ChoiceRules:
    """Rules as they travel, all of them stated."""
    return pb.ChoiceRules(
        num_prompt_tokens=rules.num_prompt_tokens,
        temperature=rules.temperature,
        top_k=rules.top_k,
        top_p=rules.top_p,
        min_p=rules.min_p,
        typical_p=rules.typical_p,
        repetition_penalty=rules.repetition_penalty,
        presence_penalty=rules.presence_penalty,
        frequency_penalty=rules.frequency_penalty,
        logit_bias=values_to_messages(rules.logit_bias),
        min_tokens=rules.min_tokens,
        ending_token_ids=rules.ending_token_ids,
        bad_words=[pb.TokenSequence(token_ids=ids) for ids in rules.bad_words],
        banned_token_ids=rules.banned_token_ids,
        allowed_token_ids=rules.allowed_token_ids,
        seed=rules.seed,
        num_logprobs=rules.num_logprobs,
        num_prompt_logprobs=rules.num_prompt_logprobs,
        grammar=None if rules.grammar is None else grammar_to_message(rules.grammar),
    )


def rules_from_message(message: pb.ChoiceRules) -> ChoiceRules:
    """Rules of a sequence."""
    return ChoiceRules(
        num_prompt_tokens=message.num_prompt_tokens,
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p,
        min_p=message.min_p,
        typical_p=message.typical_p,
        repetition_penalty=message.repetition_penalty,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        logit_bias=values_from_messages(message.logit_bias),
        min_tokens=message.min_tokens,
        ending_token_ids=tuple(message.ending_token_ids),
        bad_words=tuple(tuple(word.token_ids) for word in message.bad_words),
        banned_token_ids=tuple(message.banned_token_ids),
        allowed_token_ids=tuple(message.allowed_token_ids),
        seed=message.seed,
        num_logprobs=message.num_logprobs if message.HasField("num_logprobs") else None,
        num_prompt_logprobs=(
            message.num_prompt_logprobs if message.HasField("num_prompt_logprobs") else None
        ),
        grammar=grammar_from_message(message.grammar) if message.HasField("grammar") else None,
    )


def grammar_to_message(grammar: Grammar) -> pb.Grammar:
    """A grammar as it travels."""
    return pb.Grammar(kind=_KINDS[grammar.kind], text=grammar.text)


def grammar_from_message(message: pb.Grammar) -> Grammar:
    """A grammar; ProtocolError when its language is not known."""
    kind = _KINDS_BACK.get(message.kind)
    if kind is None:
        raise ProtocolError(f"grammar.kind {message.kind} is not known")
    return Grammar(kind, message.text)


def logprobs_to_messages(logprobs: Iterable[TokenLogprobs]) -> list[pb.TokenLogprobs]:
    """Logprobs of several positions as they travel."""
    return [
        pb.TokenLogprobs(
            token_id=item.token_id, logprob=item.logprob, top=values_to_messages(item.top)
        )
        for item in logprobs
    ]


def logprobs_from_messages(messages: Iterable[pb.TokenLogprobs]) -> tuple[TokenLogprobs, ...]:
    """Logprobs of several positions."""
    return tuple(
        TokenLogprobs(item.token_id, item.logprob, values_from_messages(item.top))
        for item in messages
    )


def values_to_messages(values: Sequence[tuple[int, float]]) -> list[pb.TokenValue]:
    """Numbers that belong to tokens, as they travel."""
    return [pb.TokenValue(token_id=token_id, value=value) for token_id, value in values]


def values_from_messages(messages: Iterable[pb.TokenValue]) -> tuple[tuple[int, float], ...]:
    """Numbers that belong to tokens."""
    return tuple((item.token_id, item.value) for item in messages)
