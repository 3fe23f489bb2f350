"""Clients that ask all the time and compare each answer with what plain decoding says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from exspec import Client
from tests.compose.stack import until

PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a",
    "def fibonacci(n):",
    "Water boils at a temperature of",
)
NUM_TOKENS = 12
NUM_SPECULATIVE_TOKENS = 3
NUM_CLIENTS = 2


def generate(
    client: Client, prompt: str, num_speculative_tokens: int, num_tokens: int = NUM_TOKENS
) -> tuple[int, ...]:
    """The tokens of one generation of a fixed length."""
    result = client.generate(
        prompt, max_tokens=num_tokens, ignore_eos=True,
        num_speculative_tokens=num_speculative_tokens,
    )  # fmt: skip
    return result.token_ids


class Load:
    """Runs from `with` to its end, which raises what went wrong. Owns its threads."""

    def __init__(
        self, open_client: Callable[[], Client], truth: dict[str, tuple[int, ...]]
    ) -> None:
        self._open_client = open_client
        self._truth = truth
        self._stop = threading.Event()
        self.num_answers = 0
        self._failures: list[str] = []
        self._threads = [threading.Thread(target=self._run) for _ in range(NUM_CLIENTS)]

    def go_on(self) -> None:
        """Wait for so many more answers that some were asked for after now."""
        wanted = self.num_answers + 2 * NUM_CLIENTS
        until(f"{wanted} answers", lambda: self.num_answers >= wanted or bool(self._failures))
        assert not self._failures, self._failures

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self._failures, self._failures

    def _run(self) -> None:
        try:
            with self._open_client() as client:
                while not self._stop.is_set():
                    self._ask_all(client)
        except Exception as error:  # noqa: BLE001 - told by the thread that waits
            self._failures.append(repr(error))

    def _ask_all(self, client: Client) -> None:
        for prompt, tokens in self._truth.items():
            got = generate(client, prompt, NUM_SPECULATIVE_TOKENS)
            if got != tokens:
                self._failures.append(f"{prompt!r}: {got}, plain decoding says {tokens}")
            self.num_answers += 1
            if self._stop.is_set():
                return
