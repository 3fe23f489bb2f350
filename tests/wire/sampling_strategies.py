"""Sampling parameters and rules of all kinds, their advice and logprobs, for round trips."""

from __future__ import annotations

from hypothesis import assume
from hypothesis import strategies as st

from exspec.core.choosing import ChoiceRules, Grammar, GrammarKind, TokenLogprobs
from exspec.core.errors import InvalidRequestError
from exspec.core.models import GenerationDefaults
from exspec.core.params import SamplingParams

U32 = st.integers(0, 2**32 - 1)
TEXT = st.text(min_size=1, max_size=10)
IDS = st.lists(U32, max_size=5).map(tuple)
_SHARES = st.floats(0.001, 1)
_PENALTIES = st.floats(-2, 2)
_BIAS = st.dictionaries(U32, st.floats(-100, 100), max_size=3).map(lambda d: tuple(d.items()))
_SEQUENCES = st.lists(st.lists(U32, min_size=1, max_size=3).map(tuple), max_size=2).map(tuple)
_GRAMMARS = st.none() | st.builds(Grammar, st.sampled_from(GrammarKind), TEXT)
_TEMPERATURES = st.just(0.0) | st.floats(0.001, 100)
_REPORTED = st.none() | st.integers(0, 20)


@st.composite
def _sampling(draw: st.DrawFn) -> SamplingParams:
    max_tokens = draw(st.integers(1, 2**31 - 1))
    try:
        return SamplingParams(
            max_tokens=max_tokens,
            stop=draw(st.lists(TEXT, max_size=3).map(tuple)),
            stop_token_ids=draw(IDS),
            ignore_eos=draw(st.booleans()),
            temperature=draw(st.none() | _TEMPERATURES),
            top_k=draw(st.none() | st.integers(-1, 2**31 - 1)),
            top_p=draw(st.none() | _SHARES),
            min_p=draw(st.none() | st.floats(0, 1)),
            typical_p=draw(st.none() | _SHARES),
            repetition_penalty=draw(st.none() | st.floats(0.01, 100)),
            presence_penalty=draw(_PENALTIES),
            frequency_penalty=draw(_PENALTIES),
            logit_bias=draw(_BIAS),
            min_tokens=draw(st.integers(0, max_tokens)),
            bad_words=draw(st.lists(TEXT, max_size=2).map(tuple)),
            bad_words_ids=draw(_SEQUENCES),
            banned_token_ids=draw(IDS),
            allowed_token_ids=draw(IDS),
            seed=draw(st.none() | st.integers(0, 2**64 - 1)),
            logprobs=draw(_REPORTED),
            prompt_logprobs=draw(_REPORTED),
            include_stop_str_in_output=draw(st.booleans()),
            structured=draw(_GRAMMARS),
        )
    except InvalidRequestError:
        assume(False)
        raise


SAMPLING = _sampling()
"""All that a request may ask for."""

RULES = st.builds(
    ChoiceRules,
    U32,
    _TEMPERATURES,
    U32,
    _SHARES,
    st.floats(0, 1),
    _SHARES,
    st.floats(0.01, 100),
    _PENALTIES,
    _PENALTIES,
    _BIAS,
    U32,
    IDS,
    _SEQUENCES,
    IDS,
    IDS,
    st.integers(0, 2**64 - 1),
    _REPORTED,
    _REPORTED,
    _GRAMMARS,
)

ADVICE = st.builds(
    GenerationDefaults,
    st.none() | _TEMPERATURES,
    st.none() | st.integers(0, 2**31 - 1),
    *(st.none() | strategy for strategy in (_SHARES, st.floats(0, 1), _SHARES)),
    st.none() | st.floats(0.01, 100),
)

LOGPROBS = st.lists(
    st.builds(
        TokenLogprobs,
        U32,
        st.floats(allow_nan=False),
        st.lists(st.tuples(U32, st.floats(allow_nan=False)), max_size=2).map(tuple),
    ),
    max_size=2,
).map(tuple)
