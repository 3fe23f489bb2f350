"""Whose rules are ready: brought with position 0, kept for what follows, dropped with the rest."""

from __future__ import annotations

from exspec.core.choosing import ChoiceRules
from exspec.core.rounds import DraftEntry, EntryKey
from exspec.core.session_rules import SessionRules


def made(log):
    return SessionRules(lambda rules: log.append(rules) or len(log))


def entry(start, rules=None, epoch=0, name="a"):
    return DraftEntry(EntryKey(name, epoch, 0), start, (1,), 0, rules)


def served(table, item):
    ready = table.of(item)
    table.keep(item.key.sequence_id, ready)
    return None if ready is None else ready.choosing


ONE, OTHER = ChoiceRules(3, seed=1), ChoiceRules(3, seed=2)


def test_they_hold_from_position_0_until_an_entry_starts_there_again():
    log = []
    table = made(log)
    assert [served(table, entry(0, ONE)), served(table, entry(5)), served(table, entry(0))] == [
        1,
        1,
        None,
    ]
    assert served(table, entry(5)) is None
    assert log == [ONE]


def test_they_are_made_anew_only_if_they_differ_or_the_epoch_does():
    log = []
    table = made(log)
    items = [entry(0, ONE), entry(0, ONE), entry(0, OTHER), entry(0, OTHER, epoch=1)]
    assert [served(table, item) for item in items] == [1, 1, 2, 3]


def test_to_ask_changes_nothing():
    table = made([])
    table.of(entry(0, ONE))
    assert (len(table), table.of(entry(5))) == (0, None)


def test_each_sequence_has_its_own():
    table = made([])
    assert [served(table, entry(0, ONE, name=name)) for name in "ab"] == [1, 2]
    table.drop("a")
    table.drop("a")
    assert table.of(entry(5, name="a")) is None
    assert served(table, entry(5, name="b")) == 2
