"""Grammars are tried out before they are taken in: what is refused, why, and that nothing hangs."""

from __future__ import annotations

import json
import sys

import pytest

from coordinator import structured
from coordinator.structured import GrammarGate, check_grammar
from exspec.core.choosing import Grammar, GrammarKind
from exspec.core.errors import InvalidRequestError, QueueFullError, UnavailableError
from exspec.core.params import MAX_GRAMMAR_LENGTH, SamplingParams
from exspec.structured import compiling


def schema(**keywords) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(keywords))


def regex(text: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, text)


def lark(text: str) -> Grammar:
    return Grammar(GrammarKind.LARK, text)


def refused(grammar: Grammar) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        check_grammar(grammar)
    assert caught.value.field == "structured"
    assert caught.value.message.startswith("structured ")
    assert len(caught.value.message) < 600
    return caught.value.message


@pytest.mark.parametrize(
    "grammar",
    [
        schema(type="object", properties={"a": {"type": "integer"}}, required=["a"]),
        schema(),
        Grammar(GrammarKind.JSON_SCHEMA, "true"),
        schema(**{"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}),
        schema(enum=[f"name {i}" for i in range(3000)]),
        regex(r"\d{3}-\d{4}( x\d+)?"),
        regex("é|日本"),
        regex("a" * MAX_GRAMMAR_LENGTH),
        regex("(.*a.{30})"),
        lark('start: e\ne: t ("+" t)*\nt: /[0-9]+/ | "(" e ")"'),
        lark('start: x "!"\nx[lazy]: /[a-z]*stop=/\n// [stop="a"]: b'),
        lark('%import common.INT\nstart: INT | %json {"type": "boolean"}'),
    ],
)
def test_usual_grammars_are_taken(grammar):
    check_grammar(grammar)


REFUSED = {
    "not": (schema(**{"not": {"type": "string"}}), 'Unimplemented keys: ["not"]'),
    "if": (schema(**{"if": {}, "then": {}}), '["if", "then"]'),
    "nested": (schema(items={"uniqueItems": True, "type": "array"}), '["uniqueItems"]'),
    "a type": (schema(type="strin"), "Invalid type: strin"),
    "a format": (schema(type="string", format="nope"), "nope"),
    "a pattern": (schema(type="string", pattern="(?=a)b"), "look-ahead"),
    "a pointer": (schema(**{"$ref": "#/$defs/a"}), "/$defs/a"),
    "another host": (schema(**{"$ref": "http://example.com/a"}), "example.com"),
    "a schema of nothing": (Grammar(GrammarKind.JSON_SCHEMA, "false"), "Unsatisfiable"),
    "no schema": (Grammar(GrammarKind.JSON_SCHEMA, '["a"]'), "object or boolean"),
    "no JSON": (Grammar(GrammarKind.JSON_SCHEMA, '{"type": '), "not JSON"),
    "two JSONs": (Grammar(GrammarKind.JSON_SCHEMA, '{}, "lark_grammar": ""'), "not JSON"),
    "an open group": (regex("("), "unclosed group"),
    "a reference back": (regex(r"(a)\1"), "backreferences are not supported"),
    "no text": (regex(r"[^\s\S]"), "no text can be made"),
    "an unknown rule": (lark("start: foo"), "foo"),
    "a rule without end": (lark("start: start"), "no text can be made"),
    "a special token": (lark("start: <|end|>"), "special tokens"),
    "hidden text": (lark('start: x\nx[lazy, stop="]"]: /.*/'), "attribute stop"),
    "temperature": (lark("start: x\nx [ temperature = 1 ]: /.*/"), "attribute temperature"),
    "another language": (lark(' {"grammars": []}'), "begins with {"),
    "half a character": (regex("\ud800"), "cannot be read"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_grammar_that_cannot_be_served_is_refused_with_the_reason(case):
    grammar, reason = REFUSED[case]
    assert reason in refused(grammar)


DEMANDING = {
    "a deep value": Grammar(GrammarKind.JSON_SCHEMA, "[" * 30_000 + "]" * 30_000),
    "a deep schema": Grammar(GrammarKind.JSON_SCHEMA, '{"items":' * 900 + "true" + "}" * 900),
    "deep groups": regex("(" * 20_000 + "a" + ")*" * 20_000),
    "deep rules": lark("start: " + "(" * 20_000 + '"a"' + ")" * 20_000),
    "many choices": schema(allOf=[{"anyOf": [{"minimum": i}, {"maximum": 9}]} for i in range(600)]),
    "many names": lark("start: " + "|".join(f"/{i}.*/" for i in range(5000))),
    "twice and twice again": lark(
        "start: A0\n" + "\n".join(f"A{i}: A{i + 1} A{i + 1}" for i in range(60)) + '\nA60: "x"'
    ),
    "a long count": regex("a{1000000000}"),
    "a repetition of maybes": regex("a?" * 30_000),
    "terminals in terminals": lark(
        "start: A0\n" + "\n".join(f'A{i}: A{i + 1} | "{i}"' for i in range(3000)) + '\nA3000: "x"'
    ),
}


@pytest.mark.parametrize("case", DEMANDING)
def test_a_grammar_that_asks_for_too_much_is_refused_and_the_next_one_is_served(case):
    refused(DEMANDING[case])
    check_grammar(regex(f"after {case}"))


def test_what_ends_the_process_is_refused_at_once_the_second_time():
    reasons = {refused(DEMANDING["terminals in terminals"]) for _ in range(2)}
    assert len(reasons) == 1


def test_without_llguidance_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(compiling, "find_spec", lambda name: None)
    assert "pip install 'exspec[structured]'" in refused(regex("a"))


_ECHO = """
import json, os, signal, sys
print(json.dumps({"is_ready": True}), flush=True)
for line in sys.stdin:
    text = json.loads(line)["text"]
    if text == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if text == "hang":
        signal.pause()
    print(json.dumps({"reason": text}), flush=True)
"""


@pytest.fixture
def make_gate():
    gates = []

    def make(code: str = _ECHO, max_wait_seconds: float = 30.0) -> GrammarGate:
        gates.append(GrammarGate((sys.executable, "-c", code), max_wait_seconds))
        return gates[-1]

    yield make
    for gate in gates:
        gate.close()


def test_a_crash_is_the_grammars_fault_and_another_process_takes_over(make_gate):
    gate = make_gate()
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        gate.check(regex("crash"))
    with pytest.raises(InvalidRequestError, match="next"):
        gate.check(regex("next"))
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        gate.check(regex("crash"))


def test_a_process_killed_between_grammars_is_replaced(make_gate):
    gate = make_gate()
    for text in ("one", "two"):
        with pytest.raises(InvalidRequestError, match=text):
            gate.check(regex(text))
        gate._process.kill()
        gate._process.wait()


def test_a_process_that_does_not_answer_in_time_is_nobodys_fault(make_gate, monkeypatch):
    monkeypatch.setattr(structured, "_EXIT_SECONDS", 0.01)
    gate = make_gate()
    with pytest.raises(InvalidRequestError, match="first"):
        gate.check(regex("first"))
    gate._max_wait_seconds = 0.01
    with pytest.raises(UnavailableError, match="in time"):
        gate.check(regex("hang"))


def test_whoever_waits_too_long_behind_others_may_come_again(make_gate):
    gate = make_gate(max_wait_seconds=0.01)
    with gate._process_lock, pytest.raises(QueueFullError) as caught:
        gate.check(regex("a"))
    assert caught.value.retry_after_seconds > 0


def test_a_process_that_cannot_start_is_nobodys_fault(make_gate):
    gate = make_gate("raise SystemExit(3)")
    with pytest.raises(UnavailableError, match="code 3"):
        gate.check(regex("a"))


def test_only_so_many_grammars_are_remembered(make_gate, monkeypatch):
    monkeypatch.setattr(structured, "_NUM_REMEMBERED", 2)
    gate = make_gate()
    for text in ("a", "b", "a", "c", "a"):
        with pytest.raises(InvalidRequestError, match=text):
            gate.check(regex(text))
    assert [grammar.text for grammar in gate._reasons] == ["c", "a"]


def test_bounds_of_the_request_come_first():
    with pytest.raises(InvalidRequestError, match=str(MAX_GRAMMAR_LENGTH)):
        SamplingParams(structured=regex("a" * (MAX_GRAMMAR_LENGTH + 1)))
