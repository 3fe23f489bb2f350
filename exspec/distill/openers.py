"""How sampled user turns begin, so that what a target is asked is as varied as what users ask.

Only beginnings: the target goes on by itself. A task is made of stages; each puts down a beginning
and lets the target write up to a number of tokens after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

FREE = "free"
"""The task that begins with nothing: whatever the target thinks that a user says."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Put down `before` and one of `openers`, then let the target write up to `max_tokens`."""

    openers: tuple[str, ...]
    max_tokens: int
    before: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """A kind of user turn, and how often it is taken in comparison with the others."""

    name: str
    weight: float
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class Beginning:
    """One stage of one turn, drawn: the text to put down, and how much may follow."""

    text: str
    max_tokens: int


_QUESTIONS = (
    *("Who", "Who wrote", "Who was the first", "Who played", "Who is the", "Who sang"),
    *("What is", "What is the difference between", "What are the", "What does", "What was"),
    *("What year did", "What kind of", "When did", "When was", "When is the", "Where is"),
    *("Where did", "Where was", "Where does the", "How many", "How do I", "How does"),
    *("How long", "How much", "How can", "Why do", "Why is", "Which", "Can you", "Is it"),
    *("Name", "In what", "Define", "What happens if", "How to", "Is there a", "Do", "The"),
)
_PASSAGES = (
    *("The", "In", "A", "The history of", "During the", "The first", "It was", "According to"),
    *("Born in", "The city of", "The song", "The film", "The team", "As of", "There are", "He"),
    *("She", "After the", "In the 19th century", "The river", "The game", "Scientists", "Many"),
    *("The book", "The company", "Water", "The human", "The United States", "One of the"),
)
_NEWS = (
    *("A man", "A woman", "The mayor of", "Police", "Police in", "The president", "LONDON -"),
    *("(CNN)", "NEW YORK (AP) -", "A new study", "Researchers", "Officials said", "The family"),
    *("The actor", "The striker", "Manchester", "A teenager", "Two people", "The government"),
    *("Former", "Residents of", "An investigation", "It was the moment", "The singer", "Fans"),
    *("The company", "Hundreds of", "A court", "The BBC", "Scientists", "The football club"),
)
_SUMS = (
    *("Tom", "Sarah", "John", "Maria", "A farmer", "A baker", "A train", "A store", "A shop"),
    *("There are", "If", "Jack", "Emma", "A school", "A car", "Each", "Lily", "Mr. Smith"),
    *("In a class of", "A box", "Two", "James", "Anna", "A bakery", "The price of", "Mike"),
    *("A rectangle", "Every day", "Kate", "Ben", "Carlos", "The sum of", "A company", "Olivia"),
)
_REQUESTS = (
    *("Write a", "Write a short story", "Write an email", "Write a poem about", "Compose"),
    *("Describe", "Explain", "Explain how", "Imagine you are", "Create a", "Pretend to be"),
    *("Give me", "List", "Suggest", "Help me", "Draft a", "Discuss", "Compare", "Provide"),
    *("Design a", "Tell me about", "I want you to act as", "I need", "Outline", "Rewrite"),
    *("You are a", "Please", "Make a", "Develop a", "Could you", "Edit the following", "Plan"),
)
_STRICT = (
    *("Write a Python function", "Write a program", "Implement", "Given the following"),
    *("Extract", "Evaluate", "Classify", "Solve", "Find", "Calculate", "Identify", "Read the"),
    *("Suppose", "Determine", "Convert", "Sort", "Fix the", "What is the value of", "Prove"),
    *("Write a SQL query", "Given a list", "Complete the", "Answer the following", "Analyze"),
)
_GERMAN = (
    *("Die", "Der", "Das", "Ein", "Eine", "In", "Nach", "Es", "Wir", "Ich", "Im", "Bei"),
    *("Mit", "Am", "Für", "Auch", "Sie", "Er", "Als", "Wenn", "Doch", "Aber", "Zwei", "Seit"),
)
_TRANSLATIONS = (
    *("Translate to English:", "Translate this into French:", "Translate to Spanish:"),
    *("How do you say", "Translate the following sentence:", "Translate German to English:"),
)

TASKS = (
    Task(FREE, 0.2, (Stage(("",), 90),)),
    Task("question", 0.22, (Stage(_QUESTIONS, 48),)),
    Task("request", 0.17, (Stage(_REQUESTS, 64),)),
    Task("sum", 0.13, (Stage(_SUMS, 90),)),
    Task("strict", 0.06, (Stage(_STRICT, 80),)),
    Task("summary", 0.07, (Stage(_NEWS, 220, "Summarize: "),)),
    Task("passage", 0.06, (Stage(_PASSAGES, 180), Stage(_QUESTIONS, 32, "\n"))),
    Task("german", 0.05, (Stage(_GERMAN, 50, "Translate German to English: "),)),
    Task("translation", 0.03, (Stage(_TRANSLATIONS, 60),)),
)


def draw_turn(random: Random) -> tuple[str, tuple[Beginning, ...]]:
    """A task's name, and the beginnings of its stages."""
    task = random.choices(TASKS, weights=[task.weight for task in TASKS])[0]
    beginnings = tuple(
        Beginning(stage.before + random.choice(stage.openers), stage.max_tokens)
        for stage in task.stages
    )
    return task.name, beginnings
