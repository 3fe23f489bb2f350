"""Stop strings in text that arrives in pieces, against a search of the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exspec.core.stopping import StopStringMatcher


def _feed(stop: list[str], pieces: list[str]) -> tuple[str, str | None]:
    """What is shown in all, and what was met."""
    matcher = StopStringMatcher(stop)
    shown = ""
    for piece in pieces:
        shown += matcher.push(piece)
        if matcher.matched is not None:
            return shown, matcher.matched
    return shown + matcher.flush(), None


@pytest.mark.parametrize(
    ("stop", "pieces", "shown", "met"),
    [
        ([], ["ab", "c"], "abc", None),
        (["b"], ["abc"], "a", "b"),
        (["bc"], ["ab", "cd"], "a", "bc"),
        (["bcd"], ["ab", "c", "x"], "abcx", None),
        (["aab"], ["aa", "ab"], "a", "aab"),
        (["abab"], ["ab", "ac", "abab"], "abac", "abab"),
        (["ab", "abc"], ["abc"], "", "abc"),
        (["ab", "abc"], ["ab", "c"], "", "ab"),
        (["bcd", "c"], ["abcd"], "a", "bcd"),
        (["x", "ab"], ["a"], "a", None),
        (["\n\n"], ["a\n", "b\n", "\nc"], "a\nb", "\n\n"),
    ],
)
def test_examples(stop, pieces, shown, met):
    assert _feed(stop, pieces) == (shown, met)


def test_only_what_could_become_a_stop_string_is_held_back():
    matcher = StopStringMatcher(["STOP", "TAB"])
    assert matcher.push("a") == "a"
    assert matcher.push("bS") == "b"
    assert matcher.push("T") == ""
    assert matcher.push("A") == "S"
    assert matcher.push("x") == "TAx"
    assert matcher.flush() == ""


@given(
    stop=st.lists(st.text("ab", min_size=1, max_size=4), max_size=4),
    pieces=st.lists(st.text("abc", max_size=4), max_size=10),
)
def test_against_a_search_of_the_whole_text(stop, pieces):
    shown, met = _feed(stop, pieces)
    # The piece with which the text first holds a stop string decides; the earliest one wins.
    for count in range(len(pieces) + 1):
        text = "".join(pieces[:count])
        found = [(text.find(s), -len(s), s) for s in stop if s in text]
        if found:
            start, _length, expected = min(found)
            assert (shown, met) == (text[:start], expected)
            return
    assert (shown, met) == ("".join(pieces), None)


@given(
    stop=st.lists(st.text("ab", min_size=1, max_size=4), max_size=4),
    pieces=st.lists(st.text("abc", max_size=4), max_size=10),
)
def test_what_was_shown_is_never_part_of_a_stop_string(stop, pieces):
    matcher = StopStringMatcher(stop)
    shown = ""
    for index, piece in enumerate(pieces):
        shown += matcher.push(piece)
        if matcher.matched is not None:
            break
        text = "".join(pieces[: index + 1])
        assert text.startswith(shown)
        held = text[len(shown) :]
        assert held == "" or any(s.startswith(held) and s != held for s in stop)


@pytest.mark.parametrize(
    ("stop", "pieces", "shown"),
    [
        (["b"], ["abc"], "ab"),
        (["bc"], ["ab", "cd"], "abc"),
        (["ab", "abc"], ["abc"], "abc"),
        (["x"], ["ab"], "ab"),
    ],
)
def test_a_stop_string_can_belong_to_the_text(stop, pieces, shown):
    matcher = StopStringMatcher(stop, is_included=True)
    text = "".join(matcher.push(piece) for piece in pieces)
    assert text + matcher.flush() == shown


@given(
    stop=st.lists(st.text("ab", min_size=1, max_size=4), max_size=4),
    early=st.lists(st.text("abc", max_size=3), max_size=5),
    late=st.lists(st.text("abc", max_size=3), max_size=6),
)
def test_pieces_that_are_passed_by_complete_nothing_and_may_begin_something(stop, early, late):
    matcher = StopStringMatcher(stop)
    shown = "".join(matcher.pass_by(piece) for piece in early)
    assert matcher.matched is None
    text = "".join(early)
    for piece in late:
        before, text = len(text), text + piece
        shown += matcher.push(piece)
        ends = [
            (i, -len(s), s) for s in stop for i in range(len(text)) if text.startswith(s, i)
            and before < i + len(s) <= len(text)
        ]  # fmt: skip
        if not ends:
            assert matcher.matched is None
            continue
        start, _, met = min(ends)
        assert matcher.matched == met
        assert shown == text[:start]
        return
    assert shown + matcher.flush() == text
