"""Prompts that come with the package, so that an audit runs on any machine. Text only.

Of different lengths and kinds on purpose: one word to a page, code, lists, other scripts.
"""

from __future__ import annotations

_PAGE = """The harbour of the town lies behind two moles, the older of which was built of stones
taken from the castle after the fire. Ships of more than four metres of draught cannot enter at low
water; they wait in the roads, sometimes for a whole day, and the pilots row out to them with the
newspaper. In winter the ice closes the inner basin for some weeks. The town then lives from what
was stored in autumn, and the children learn to skate between the hulls. A railway was planned
three times. The first company failed before a single rail was laid, the second built a station and
went bankrupt, and the third, which was owned by the town itself, decided after long debate that
the station would make a good market hall. It still is one. On Thursdays fish is sold there, on
Saturdays cheese, wool and second-hand books. The clock above the entrance was made for the trains
that never came, and is the only one in the region that has always been right."""

BUILTIN_PROMPTS: tuple[tuple[str, str], ...] = (
    ("short", "Hi"),
    ("short", "What is the capital of France?"),
    ("list", "Name the days of the week, one per line."),
    ("repetition", "Write the word banana ten times, separated by commas."),
    ("math", "A train travels 60 km in 45 minutes. How fast is it in km/h? Show your steps."),
    (
        "code",
        "Explain and then fix this function:\n\n"
        "def mean(values):\n    total = 0\n    for value in values:\n        total =+ value\n"
        "    return total / len(values)\n",
    ),
    ("data", 'Turn this into JSON: name = "Ada Lovelace"; born = 1815; fields = maths, poetry'),
    (
        "other script",
        "Übersetze ins Englische: „Größe ist nicht alles, sagte der Käfer zum Bären.“",
    ),
    ("other script", "「猫は窓辺で眠っている。」を英語に訳してください。"),
    ("emoji", "Describe the mood of this message: 🎉🥳 finally done!! 👩‍🔬🧪➡️📄 see you 明日 👋"),
    ("story", "Write the beginning of a story about a clockmaker who is afraid of silence."),
    ("summary", f"Summarize the following text in two sentences.\n\n{_PAGE}"),
)
