"""The token log: where blocks are cut, what text is shown, and that ends happen once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_tokenizers import byte_level

from coordinator.ledger import Drafts, Ledger
from coordinator.output import Output, SequenceSpec
from coordinator.text import TextCodec
from exspec.core.acceptance import FinishReason
from exspec.core.choosing import ChoiceRules, TokenLogprobs
from exspec.core.errors import InternalError
from exspec.core.generation import Completed, Delta, Event, Failed
from exspec.core.ids import SequenceId
from exspec.core.models import TokenizerAssets

NAME = SequenceId("s")
PROMPT = (1, 2, 3)


CODEC = TextCodec(TokenizerAssets(byte_level().to_str()))


class Book:
    """A ledger with one sequence over a byte-level tokenizer, and what its client saw."""

    def __init__(
        self, *, stop=(), stop_token_ids=(), max_tokens=50, codec=CODEC, prompt=PROMPT, **changes
    ) -> None:
        self.now = 10.0
        self.wasted: list[int] = []
        self.ledger = Ledger(lambda: self.now, on_wasted=self.wasted.append)
        self.events: list[Event | Failed] = []
        spec = SequenceSpec(
            NAME,
            prompt,
            len(prompt) + max_tokens,
            frozenset(stop_token_ids),
            tuple(stop),
            **changes,
        )
        output = Output(spec, codec.open_stream())
        output.replay()
        self.ledger.open(spec, output, self.events.append, self.now)

    def commit(self, block: bytes, num_rejected: int = 0):
        """One round: all but the last byte were accepted drafts."""
        drafts = (*block[:-1], *[0] * num_rejected)
        logprobs = tuple(_logprob(token) for token in block)
        return self.ledger.commit(NAME, drafts, len(block) - 1, block[-1], logprobs)

    @property
    def text(self) -> str:
        return "".join(e.text for e in self.events if isinstance(e, Delta))

    @property
    def tokens(self) -> bytes:
        return bytes(t for e in self.events if isinstance(e, Delta) for t in e.token_ids)

    @property
    def end(self) -> Completed:
        assert isinstance(self.events[-1], Completed)
        assert sum(isinstance(e, Completed) for e in self.events) == 1
        assert NAME not in self.ledger
        return self.events[-1]


def _logprob(token: int) -> TokenLogprobs:
    return TokenLogprobs(token, -token / 8, ((token, -token / 8),))


def test_a_block_is_committed_and_streamed():
    book = Book()
    commit = book.commit(b"hello")
    assert (commit.num_committed, commit.is_finished) == (5, False)
    logprobs = tuple(map(_logprob, b"hello"))
    assert book.events == [Delta("hello", tuple(b"hello"), logprobs)]
    assert book.ledger.tokens(NAME, 0, 100) == (*PROMPT, *b"hello")
    assert book.ledger.tokens(NAME, 4, 6) == tuple(b"el")
    assert book.ledger.num_generated(NAME) == 5


@pytest.mark.parametrize("place", range(4))
def test_a_stop_token_anywhere_in_a_block_is_the_last_token(place):
    book = Book(stop_token_ids=(ord("!"), ord("z")))
    block = bytearray(b"abcd")
    block[place] = ord("!")
    commit = book.commit(bytes(block))
    assert (commit.num_committed, commit.is_finished) == (place + 1, True)
    assert book.tokens == bytes(block[: place + 1])
    assert book.end.finish_reason is FinishReason.STOP_TOKEN
    assert book.end.usage.num_generated_tokens == place + 1


def test_a_stop_token_in_the_prompt_means_nothing():
    book = Book(stop_token_ids=PROMPT)
    assert not book.commit(b"ab").is_finished


def test_max_tokens_cuts_a_block():
    book = Book(max_tokens=3)
    assert book.commit(b"abcde").num_committed == 3
    assert (book.tokens, book.end.finish_reason) == (b"abc", FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("blocks", "stop", "text", "tokens", "met"),
    [
        ([b"abSTOPcd"], ["STOP"], "ab", b"abSTOP", "STOP"),
        ([b"abS", b"TO", b"Pcd"], ["STOP"], "ab", b"abSTOP", "STOP"),
        ([b"abST", b"x", b"STOP"], ["STOP"], "abSTx", b"abSTxSTOP", "STOP"),
        ([b"aab", b"c"], ["abc", "bcd"], "a", b"aabc", "abc"),
        ([b"xaaab"], ["aab"], "xa", b"xaaab", "aab"),
        ([b"abcd"], ["cd", "abc"], "", b"abc", "abc"),
        ([b"abx"], ["ab", "abx"], "", b"ab", "ab"),
        (["aü".encode(), b"b"], ["üb"], "a", "aüb".encode(), "üb"),
        (["aü".encode()[:2], "aü".encode()[2:]], ["ü"], "a", "aü".encode(), "ü"),
    ],
)
def test_stop_strings_end_the_text_before_them_wherever_blocks_end(blocks, stop, text, tokens, met):
    book = Book(stop=stop)
    commits = [book.commit(block) for block in blocks]
    assert [c.is_finished for c in commits] == [False] * (len(blocks) - 1) + [True]
    assert (book.text, book.tokens) == (text, tokens)
    assert (book.end.finish_reason, book.end.stop_string) == (FinishReason.STOP_STRING, met)


@pytest.mark.parametrize(
    ("blocks", "stop", "text", "tokens"),
    [
        ([b"abSTOPcd"], ["STOP"], "abSTOP", b"abSTOP"),
        ([b"abS", b"TO", b"Pcd"], ["STOP"], "abSTOP", b"abSTOP"),
        ([b"aab", b"c"], ["abc", "bcd"], "aabc", b"aabc"),
        ([b"abcd"], ["cd", "abc"], "abc", b"abc"),
        (["aü".encode()[:2], "aü".encode()[2:]], ["ü"], "aü", "aü".encode()),
    ],
)
def test_a_stop_string_is_the_end_of_the_text_if_it_is_to_be_included(blocks, stop, text, tokens):
    book = Book(stop=stop, is_stop_included=True)
    for block in blocks:
        book.commit(block)
    assert (book.text, book.tokens) == (text, tokens)
    assert book.end.finish_reason is FinishReason.STOP_STRING


@pytest.mark.parametrize("size", [1, 5, 12])
@pytest.mark.parametrize(
    ("min_tokens", "stop", "text", "tokens"),
    [
        (2, ["abc"], "", b"abc"),
        (3, ["abc"], "abcx", b"abcxabc"),
        (6, ["abc"], "abcx", b"abcxabc"),
        (4, ["cxab"], "ab", b"abcxab"),
        (4, ["xa", "bc", "abcy"], "abc", b"abcxa"),
        (3, ["abc", "abcy"], "abcx", b"abcxabc"),
        (12, ["abc"], "abcxabcabcab", b"abcxabcabcab"),
    ],
)
def test_a_stop_string_that_is_complete_too_early_ends_nothing(
    size, min_tokens, stop, text, tokens
):
    """One that only begins early does."""
    book = Book(stop=stop, min_tokens=min_tokens, max_tokens=12)
    rest = b"abcxabcabcab"
    while rest and NAME in book.ledger:
        book.commit(rest[:size])
        rest = rest[size:]
    assert (book.text, book.tokens) == (text, tokens)


def test_a_stop_token_that_comes_too_early_does_not_end_the_text():
    for size in (1, 3, 8):
        book = Book(stop_token_ids=b"!", min_tokens=3)
        rest = b"!a!b!c"
        while rest and NAME in book.ledger:
            book.commit(rest[:size])
            rest = rest[size:]
        assert book.tokens == b"!a!b!"
        assert book.end.finish_reason is FinishReason.STOP_TOKEN


def test_a_stop_string_with_the_last_token_allowed_is_a_stop():
    book = Book(stop=["cd"], max_tokens=4)
    book.commit(b"abcd")
    assert (book.end.finish_reason, book.text) == (FinishReason.STOP_STRING, "ab")


def test_what_was_held_back_for_a_stop_string_is_shown_at_the_end():
    book = Book(stop=["STOP"], max_tokens=4)
    book.commit(b"abST")
    assert (book.text, book.end.finish_reason) == ("abST", FinishReason.LENGTH)
    assert book.end.stop_string == ""


def test_a_character_in_pieces_is_shown_when_it_is_whole():
    book = Book()
    euro = "€".encode()
    for byte in euro:
        book.commit(bytes([byte]))
    assert [e.text for e in book.events] == ["", "", "€"]


def test_an_incomplete_character_at_the_end_is_a_replacement_character():
    book = Book(max_tokens=2)
    book.commit(b"a" + "€".encode()[:1])
    assert book.text == "a\ufffd"


def test_without_a_tokenizer_there_are_tokens_and_no_text():
    book = Book(codec=TextCodec(TokenizerAssets("")), max_tokens=3)
    book.commit(b"abc")
    assert (book.text, book.tokens) == ("", b"abc")


@pytest.mark.parametrize(
    "ending", [{"stop": ["cd"]}, {"stop_token_ids": b"d"}, {"max_tokens": 4}], ids=str
)
def test_logprobs_are_cut_where_tokens_are(ending):
    book = Book(**ending)
    book.commit(b"ab")
    book.commit(b"cdef")
    assert book.tokens == b"abcd"
    logprobs = [one for e in book.events if isinstance(e, Delta) for one in e.logprobs]
    assert logprobs == [_logprob(token) for token in b"abcd"]
    assert book.end.usage.num_generated_tokens == 4


def test_logprobs_of_the_prompt_may_come_in_any_pieces_and_again():
    prompt = tuple(range(20, 28))
    rules = ChoiceRules(8, num_prompt_logprobs=1)
    book = Book(prompt=prompt, rules=rules)
    scores = [_logprob(token) for token in prompt]

    def lacking() -> str:
        return book.ledger.lacking(NAME, 1, 0)

    assert "position 1" in lacking()
    book.ledger.note_prompt_logprobs(NAME, 1, scores[1:4])
    assert "position 4" in lacking()
    book.ledger.note_prompt_logprobs(NAME, 6, scores[6:])
    assert "position 4" in lacking()
    book.ledger.note_prompt_logprobs(NAME, 2, scores[2:6])
    book.ledger.note_prompt_logprobs(NAME, 7, [scores[7], _logprob(99)])
    assert lacking() == ""
    assert book.ledger.rules(NAME) == rules
    assert book.ledger.scored_token(NAME, 7) == prompt[7]
    assert book.ledger.scored_token(NAME, 8) is None
    book.commit(b"ab")
    book.commit(b"cd")
    deltas = [e for e in book.events if isinstance(e, Delta)]
    assert [delta.prompt_logprobs for delta in deltas] == [tuple(scores[1:]), ()]
    assert book.ledger.rules(NAME) is None
    assert book.ledger.scored_token(NAME, 7) is None
    book.ledger.note_prompt_logprobs(NAME, 1, scores[1:])
    book.ledger.note_prompt_logprobs(SequenceId("gone"), 1, scores[1:])


def test_what_was_left_out_of_a_decision_is_told():
    book = Book(rules=ChoiceRules(3, num_logprobs=0))
    assert book.ledger.lacking(NAME, 3, 3) == ""
    assert "logprobs" in book.ledger.lacking(NAME, 3, 2)
    assert Book().ledger.lacking(NAME, 3, 0) == ""
    assert book.ledger.lacking(SequenceId("gone"), 3, 0) == ""


def test_every_draft_token_that_came_is_verified_or_wasted():
    """Those that were accepted and kept are the only useful ones."""
    book = Book(stop_token_ids=b"!")
    book.ledger.note_drafts(NAME, 4)
    book.commit(b"ab", num_rejected=2)  # 1 of 3 accepted, 1 was not verified
    book.ledger.note_drafts(NAME, 5)  # came too late
    book.commit(b"c")
    book.ledger.note_drafts(NAME, 3)
    book.commit(b"d!ef")  # 3 accepted, 1 of them cut off
    stats = book.end.speculation
    assert (stats.num_rounds, stats.num_draft_tokens, stats.num_accepted_tokens) == (3, 6, 4)
    assert stats.num_drafts_per_position == (2, 2, 2)
    assert stats.num_accepted_per_position == (2, 1, 1)
    num_cut = 2
    assert book.end.usage.num_generated_tokens == 5 == 4 + 3 - num_cut
    assert stats.num_wasted_tokens == 4 + 5 + 3 - 3
    assert book.wasted == [9]
    book.ledger.note_drafts(NAME, 2)  # for a sequence that has ended
    assert book.wasted == [9, 2]


@pytest.mark.parametrize("is_failure", [True, False])
def test_what_was_drafted_for_a_lost_sequence_is_wasted(is_failure):
    book = Book()
    book.ledger.note_drafts(NAME, 7)
    book.commit(b"abc", num_rejected=1)
    if is_failure:
        book.ledger.fail(NAME, InternalError("x"))
    else:
        book.ledger.cancel(NAME)
    assert book.wasted == [5]


def test_looked_up_drafts_are_counted_apart():
    book = Book(max_tokens=4)
    book.ledger.note_looked_up(NAME, 2, 1)
    book.commit(b"abc", num_rejected=1)
    book.ledger.note_looked_up(NAME, 0, 0)
    book.commit(b"d")
    stats = book.end.speculation
    assert (stats.num_looked_up_tokens, stats.num_accepted_looked_up_tokens) == (2, 1)
    assert (stats.num_model_tokens, stats.num_accepted_model_tokens) == (1, 1)


def test_statistics_and_times():
    book = Book(max_tokens=6)
    book.now = 11
    book.ledger.note_started(NAME)
    book.now = 13
    book.ledger.note_started(NAME)
    book.commit(b"ab", num_rejected=2)
    book.now = 17
    book.commit(b"cdef")
    stats, timings = book.end.speculation, book.end.timings
    assert (stats.num_rounds, stats.num_draft_tokens, stats.num_accepted_tokens) == (2, 6, 4)
    assert timings.queue_seconds == 1
    assert timings.time_to_first_token_seconds == 3
    assert timings.total_seconds == 7


def test_ends_happen_once():
    book = Book()
    assert book.ledger.cancel(NAME)
    assert not book.ledger.cancel(NAME)
    book.ledger.fail(NAME, InternalError("x"))
    assert book.events == []
    other = Book()
    other.ledger.fail(NAME, InternalError("x"))
    other.ledger.fail(NAME, InternalError("y"))
    assert [e.error.message for e in other.events] == ["x"]
    assert not other.ledger.cancel(NAME)
    assert len(other.ledger) == 0


def test_staged_drafts_are_taken_once_and_cut():
    book = Book()
    book.ledger.stage_draft(NAME, Drafts((1, 2, 3), num_looked_up=2))
    assert book.ledger.take_draft(NAME, 2) == Drafts((1, 2), num_looked_up=1)
    assert book.ledger.take_draft(NAME, 2) == Drafts()
    book.ledger.stage_draft(SequenceId("gone"), Drafts((1,)))


@given(
    data=st.binary(min_size=1, max_size=40) | st.text(max_size=14).map(str.encode).filter(bool),
    cuts=st.lists(st.integers(1, 5), min_size=40, max_size=40),
    stop=st.lists(st.text("ab€", min_size=1, max_size=3), max_size=3),
)
def test_how_rounds_are_cut_changes_nothing(data, cuts, stop):
    """Text, tokens, finish and stop string are functions of the tokens alone."""

    def played(sizes) -> Book:
        book = Book(stop=stop, max_tokens=len(data))
        rest = data
        for size in sizes:
            if not rest or book.commit(rest[:size]).is_finished:
                break
            rest = rest[size:]
        return book

    one, other = played([1] * len(data)), played(cuts)
    assert (one.text, one.tokens) == (other.text, other.tokens)
    assert one.end.finish_reason is other.end.finish_reason
    assert one.end.stop_string == other.end.stop_string
    if one.end.finish_reason is FinishReason.LENGTH:
        assert one.text == data.decode("utf-8", "replace")
        assert not any(s in one.text for s in stop)
    else:
        assert data.decode("utf-8", "replace").startswith(one.text)
        assert not any(s in one.text for s in stop)
