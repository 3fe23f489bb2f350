"""Text to ids and back: templates, special tokens, and decoding that may be cut anywhere."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_tokenizers import BYTE_0, byte_level, metaspace

from coordinator.text import TextCodec
from exspec.core.errors import InvalidRequestError
from exspec.core.generation import ChatMessage, ChatPrompt, TextPrompt, TokenPrompt
from exspec.core.models import TokenizerAssets

BYTES = TextCodec(TokenizerAssets(byte_level().to_str()))
WORDS = TextCodec(TokenizerAssets(metaspace().to_str()))
CHAT = ChatPrompt((ChatMessage("system", "be"), ChatMessage("user", "Hi <end>")))
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def _with_template(template: str) -> TextCodec:
    special = {"bos_token": "<end>"}
    return TextCodec(TokenizerAssets(byte_level().to_str(), template, special))


def test_text_gets_the_models_special_tokens_once():
    assert BYTES.encode(TextPrompt("Hi")) == tuple(b"Hi")
    assert WORDS.encode(TextPrompt("A")) == (1, 4, 6)


def test_token_ids_are_taken_as_they_are():
    assert WORDS.encode(TokenPrompt((0, 1, 1))) == (0, 1, 1)
    assert WORDS.render(TokenPrompt((0,))) == ""


def test_a_chat_is_rendered_once_and_gets_no_special_tokens_besides_the_templates():
    codec = _with_template(TEMPLATE)
    text = "<end>[system]be[user]Hi <end>[assistant]"
    assert codec.render(CHAT) == text
    ids = codec.encode(CHAT)
    assert ids == (256, *b"[system]be[user]Hi ", 256, *b"[assistant]")
    words = TextCodec(TokenizerAssets(metaspace().to_str(), "A", {}))
    assert words.encode(CHAT) == (4, 6)


def _refusal(codec: TextCodec, prompt) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        codec.encode(prompt)
    assert caught.value.field == "prompt"
    return caught.value.message


def test_a_model_without_a_tokenizer_takes_ids_only():
    codec = TextCodec(TokenizerAssets(""))
    assert "no tokenizer" in _refusal(codec, TextPrompt("x"))
    assert codec.encode(TokenPrompt((5,))) == (5,)
    with pytest.raises(InvalidRequestError, match="no tokenizer"):
        codec.decode([1])


def test_a_model_without_a_template_takes_no_chats():
    assert "no chat template" in _refusal(BYTES, CHAT)


def test_a_prompt_that_comes_to_nothing_is_refused():
    assert "no tokens" in _refusal(_with_template("{% if false %}x{% endif %}"), CHAT)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0]['role'] + 1 }}", "str"),
        ("{{ messages[9]['role'] }}", "no element 9"),
        ("{{ 1 / 0 }}", "division"),
        ("{% if %}", "cannot be used"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_a_template_that_fails_is_the_requests_error_not_ours(template, reason):
    assert reason in _refusal(_with_template(template), CHAT)


def test_a_broken_template_leaves_text_alone():
    assert _with_template("{% if %}").encode(TextPrompt("Hi")) == tuple(b"Hi")


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "be"),
        ("{% for m in messages %}{% break %}{% endfor %}x", "x"),
        ("{{ strftime_now('%%') }}", "%"),
        ("{{ {'ü': [1]} | tojson(ensure_ascii=False, indent=None) }}", '{"ü": [1]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=True, separators=(',', ':')) }}", '{"a":2,"b":1}'),
        ("  {% if tools %}t{% endif %}\nx\ny\n", "x\ny"),
    ],
)
def test_the_dialect_of_hugging_face_templates(template, text):
    assert _with_template(template).render(CHAT) == text


def test_truncation_and_padding_of_the_tokenizer_file_are_not_applied():
    tokenizer = byte_level()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=8)
    assert "truncation" in json.loads(tokenizer.to_str())
    codec = TextCodec(TokenizerAssets(tokenizer.to_str()))
    assert codec.encode(TextPrompt("hello")) == tuple(b"hello")


def _streamed(codec: TextCodec, token_ids) -> tuple[list[str], str]:
    stream = codec.open_stream()
    pieces = [stream.push(token_id) for token_id in token_ids]
    return pieces, stream.flush()


def test_special_tokens_are_not_shown():
    pieces, rest = _streamed(BYTES, [*b"a", 256, *b"b"])
    assert ("".join(pieces) + rest, BYTES.decode([*b"a", 256, *b"b"])) == ("ab", "ab")


def test_spaces_between_words_are_kept_and_the_first_one_is_not():
    pieces, rest = _streamed(WORDS, [2, 3, 5])
    assert pieces == ["Hello", " world", "!"]
    assert rest == ""


def test_bytes_that_make_a_character_are_shown_together():
    pieces, rest = _streamed(WORDS, [2, *(BYTE_0 + b for b in "€".encode()), 3])
    assert pieces == ["Hello", "", "", "€", " world"]
    assert rest == ""


def test_text_goes_on_after_bytes_that_make_no_sense():
    """The library's stream gives up for good on them; what follows must not be lost."""
    broken = [BYTE_0 + ord("C"), BYTE_0 + 0xE2, BYTE_0 + ord("D"), 7, 3, 6, 2]
    pieces, rest = _streamed(WORDS, broken)
    text = "".join(pieces) + rest
    assert text.startswith("C")
    assert "\ufffd" in text
    assert text.endswith("B worldA Hello")


def test_what_was_shown_stays_shown_when_the_last_bytes_are_incomplete():
    pieces, rest = _streamed(WORDS, [BYTE_0 + ord("C"), BYTE_0 + 0xE2])
    assert "".join(pieces) + rest == "C\ufffd"


@given(st.lists(st.integers(0, 256), max_size=30))
def test_pieces_concatenate_to_the_text_whatever_the_bytes(token_ids):
    pieces, rest = _streamed(BYTES, token_ids)
    assert "".join(pieces) + rest == BYTES.decode(token_ids)


@given(st.lists(st.sampled_from([2, 3, 4, 5, 6, 7, 1]), max_size=20))
def test_pieces_concatenate_to_the_text_whatever_the_words(token_ids):
    pieces, rest = _streamed(WORDS, token_ids)
    assert "".join(pieces) + rest == WORDS.decode(token_ids)


@given(st.text(max_size=12), st.lists(st.sampled_from([2, 3, 5]), max_size=4))
def test_pieces_concatenate_to_the_text_of_whole_characters(text, words):
    token_ids = [*words, *(BYTE_0 + b for b in text.encode())]
    pieces, rest = _streamed(WORDS, token_ids)
    assert "".join(pieces) + rest == WORDS.decode(token_ids)
