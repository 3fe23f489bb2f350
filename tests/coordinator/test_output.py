"""Text and ends are functions of the tokens, so a generation may be cut anywhere and resumed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_tokenizers import BYTE_0, byte_level, metaspace

from coordinator.ledger import Ledger
from coordinator.output import Output, SequenceSpec
from coordinator.text import TextCodec
from exspec.core.acceptance import FinishReason
from exspec.core.errors import InvalidRequestError
from exspec.core.generation import Completed, Delta, SpeculationStats
from exspec.core.ids import SequenceId
from exspec.core.models import TokenizerAssets

NAME = SequenceId("s")
PROMPT = (1, 2, 3)
CODECS = {
    "bytes": TextCodec(TokenizerAssets(byte_level().to_str())),
    "words": TextCodec(TokenizerAssets(metaspace().to_str())),
    "none": TextCodec(TokenizerAssets("")),
}
NO_STATS = SpeculationStats()
"""Rounds are not a function of the tokens."""
PIECES = ["a", "b", "ab", "€", "€a", "üb", "𝄞", " "]


def _spec(resumed=(), *, stop=(), stop_token_ids=(), max_tokens=60, **changes) -> SequenceSpec:
    return SequenceSpec(
        NAME,
        PROMPT,
        len(PROMPT) + max_tokens,
        frozenset(stop_token_ids),
        tuple(stop),
        resumed,
        **changes,
    )


class Life:
    """One coordinator's part in a generation, and what it sent."""

    def __init__(self, codec, spec) -> None:
        self.ledger = Ledger(lambda: 0.0)
        self.events = []
        output = Output(spec, codec.open_stream())
        output.replay()
        self.ledger.open(spec, output, self.events.append, 0.0)

    def commit(self, tokens, sizes) -> None:
        """Rounds of these sizes, until the generation ends or the tokens do."""
        rest = list(tokens)
        for size in sizes:
            if not rest or NAME not in self.ledger:
                return
            block, rest = rest[:size], rest[size:]
            self.ledger.commit(NAME, block[:-1], len(block) - 1, block[-1])

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Delta))

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(
            t for event in self.events if isinstance(event, Delta) for t in event.token_ids
        )

    @property
    def end(self) -> Completed | None:
        last = self.events[-1] if self.events else None
        return replace(last, speculation=NO_STATS) if isinstance(last, Completed) else None


@st.composite
def _generations(draw):
    """A tokenizer, tokens of well-formed and broken text, and everything that can end them."""
    kind = draw(st.sampled_from(sorted(CODECS)))
    offset = BYTE_0 if kind == "words" else 0
    text = "".join(draw(st.lists(st.sampled_from(PIECES), max_size=10)))
    tokens = [offset + byte for byte in text.encode()]
    if kind == "words":
        tokens += draw(st.lists(st.sampled_from([2, 3, 4, 5, 6, 7, 1]), max_size=6))
    broken = draw(st.lists(st.integers(0, 255).map(lambda byte: offset + byte), max_size=3))
    place = draw(st.integers(0, len(tokens)))
    tokens[place:place] = broken
    tokens = tuple(tokens) or (offset + 97,)
    stop = draw(st.lists(st.text("ab€ü ", min_size=1, max_size=4), max_size=3))
    stop_token_ids = draw(st.lists(st.sampled_from(tokens), max_size=1))
    max_tokens = draw(st.integers(1, len(tokens) + 3))
    settings = {
        "stop": stop,
        "stop_token_ids": stop_token_ids,
        "max_tokens": max_tokens,
        "min_tokens": draw(st.sampled_from([0, 0, 3, max_tokens])),
        "is_stop_included": draw(st.booleans()),
    }
    return CODECS[kind], tokens, settings


@given(
    generation=_generations(),
    cuts=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    sizes=st.lists(st.integers(1, 5), min_size=60, max_size=60),
)
def test_a_generation_cut_anywhere_goes_on_as_if_it_had_not_been(generation, cuts, sizes):
    """Text, tokens, usage, finish reason and stop string, over several losses."""
    codec, tokens, settings = generation
    whole = Life(codec, _spec(**settings))
    whole.commit(tokens, [1] * len(tokens))
    # A client that lost its coordinators has the deltas that they had sent by then.
    text, has, last = "", (), None
    for cut in sorted(cuts):
        last = Life(codec, _spec(has, **settings))
        last.commit(tokens[len(has) : max(cut, len(has))], sizes)
        text, has = text + last.text, has + last.tokens
    last = Life(codec, _spec(has, **settings))
    last.commit(tokens[len(has) :], sizes)
    text, has = text + last.text, has + last.tokens
    assert (text, has) == (whole.text, whole.tokens)
    assert last.end == whole.end


def test_what_was_held_back_for_a_stop_string_comes_with_what_settles_it():
    codec = CODECS["bytes"]
    life = Life(codec, _spec(tuple(b"abST"), stop=["STOP"]))
    life.commit(b"x", [1])
    assert life.text == "STx"
    life = Life(codec, _spec(tuple(b"abST"), stop=["STOP"]))
    life.commit(b"OP", [1, 1])
    assert life.text == ""
    assert (life.end.finish_reason, life.end.stop_string) == (FinishReason.STOP_STRING, "STOP")
    assert life.end.usage.num_generated_tokens == 6


def test_a_character_that_was_cut_comes_whole():
    euro = "€".encode()
    life = Life(CODECS["bytes"], _spec((97, *euro[:2])))
    life.commit(euro[2:], [1])
    assert life.text == "€"


@pytest.mark.parametrize(
    ("resumed", "settings", "reason"),
    [
        (b"ab!", {"stop_token_ids": b"!"}, FinishReason.STOP_TOKEN),
        (b"abc", {"max_tokens": 3}, FinishReason.LENGTH),
        (b"abS", {"max_tokens": 3, "stop": ["ST"]}, FinishReason.LENGTH),
        (b"abST", {"stop": ["ST"]}, FinishReason.STOP_STRING),
    ],
)
def test_what_ends_the_generation_already_is_completed_at_once(resumed, settings, reason):
    life = Life(CODECS["bytes"], _spec(tuple(resumed), **settings))
    (end,) = life.events
    assert end.finish_reason is reason
    assert (end.usage.num_prompt_tokens, end.usage.num_generated_tokens) == (3, len(resumed))
    assert len(life.ledger) == 0


@pytest.mark.parametrize(
    ("resumed", "settings"),
    [
        (b"a!b", {"stop_token_ids": b"!"}),
        (b"abcd", {"max_tokens": 3}),
        (b"aSTb", {"stop": ["ST"]}),
    ],
)
def test_tokens_after_the_end_are_refused(resumed, settings):
    with pytest.raises(InvalidRequestError, match="ends after") as caught:
        Life(CODECS["bytes"], _spec(tuple(resumed), **settings))
    assert caught.value.field == "resume"
