"""Tries grammars out where nothing can be hurt: `python -m exspec.structured.vetting`.

llguidance is native code that strangers' grammars are handed to: some nest until its stack is
full, some keep it busy for minutes. A worker that ends of it takes all its sequences along, and so
would the next one that gets them. So the coordinator has each grammar tried out in this process
first, with less of everything than a worker has: one line of JSON in, one line out. The kernel ends
the process if a grammar takes more than it may; the coordinator reads its exit code.
"""

from __future__ import annotations

import json
import math
import resource
import signal
import sys
from typing import TYPE_CHECKING

from exspec.core.choosing import Grammar, GrammarKind
from exspec.core.errors import InvalidRequestError
from exspec.structured.compiling import compile_grammar, reason_of, refusal

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_SECONDS = 1
"""Of processor time, up to a second more; usual grammars take milliseconds."""
_STACK_BYTES = 64 << 20
_ADDRESS_BYTES = 2 << 30
_NUM_TRIED_BYTES = 12
_END = 256


class _Bytes:
    """A vocabulary of single bytes: any text can be spelled with it."""

    eos_token_id = _END
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (_END,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def byte_tokenizer() -> LLTokenizer:
    """The vocabulary grammars are tried out with."""
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=_END + 1)


def vet(grammar: Grammar, tokenizer: LLTokenizer) -> None:
    """InvalidRequestError if no text can be made with the grammar, or only with too much work."""
    matcher = compile_grammar(grammar, tokenizer, _STACK_BYTES)
    for _ in range(_NUM_TRIED_BYTES):
        byte = _next_byte(matcher)
        if byte is None:
            return
        matcher.try_consume_tokens([byte])


def _next_byte(matcher: LLMatcher) -> int | None:
    """One that is allowed now (letters last: strings are left early); None at the end."""
    mask = int.from_bytes(matcher.compute_bitmask(), "little")
    if matcher.is_error():
        reason = reason_of(matcher.get_error())
        raise refusal(f"structured cannot be served, no text can be made with it: {reason}")
    if matcher.is_stopped():
        return None
    return next((byte for byte in range(_END) if mask >> byte & 1), None)


def main() -> int:
    """Answer until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the coordinator's to act on
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_BYTES, _ADDRESS_BYTES))
    tokenizer = byte_tokenizer()
    _answer({"is_ready": True})
    for line in sys.stdin:
        _limit_time()
        asked = json.loads(line)
        reason = ""
        try:
            vet(Grammar(GrammarKind(asked["kind"]), asked["text"]), tokenizer)
        except InvalidRequestError as error:
            reason = error.message
        _answer({"reason": reason})
    return 0


def _limit_time() -> None:
    """From now on; the kernel counts whole seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = math.ceil(usage.ru_utime + usage.ru_stime)
    resource.setrlimit(resource.RLIMIT_CPU, (used + MAX_SECONDS, resource.RLIM_INFINITY))


def _answer(message: dict[str, object]) -> None:
    sys.stdout.write(f"{json.dumps(message)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
