"""Look-up beside the model and alone: the tokens stay those of plain decoding, the sums add up."""

from __future__ import annotations

import pytest

from exspec.core.choosing import ChoiceRules
from tests.engine.policy_courses import Course, drawn_request, limits, seed_of
from tests.engine.policy_workers import Setting


def _sampled(random, family):
    request = drawn_request(random, family)
    request.stops = ()
    request.rules = random.choice([None, ChoiceRules(random.randrange(9), temperature=0.8)])
    return request


@pytest.mark.parametrize("rule", ["4", "auto"])
@pytest.mark.parametrize("policy", ["eqspec", "exspec"])
@pytest.mark.parametrize("draft", ["beside", "ngram", "fallible"])
def test_looked_up_or_not_the_tokens_are_those_of_plain_decoding(policy, layout, rule, draft):
    """Through lost workers, late drafts and moves, for greedy requests and sampled ones."""
    setting = Setting(policy, rule, layout, limits(5, 2), num_drafts=2, draft=draft)
    world = Course(setting, seed_of(setting), _sampled).run()
    totals = world.accounting.totals
    assert totals.num_draft_tokens == totals.num_model_tokens + totals.num_looked_up_tokens
    assert 0 <= totals.num_accepted_looked_up_tokens <= totals.num_looked_up_tokens
    assert 0 <= totals.num_accepted_model_tokens <= totals.num_model_tokens
    assert (totals.num_looked_up_tokens > 0) is (draft != "fallible")
    assert (totals.num_model_tokens > 0) is (draft != "ngram")
