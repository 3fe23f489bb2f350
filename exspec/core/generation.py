"""What a client asks for and what it is told: the values behind GenerationService.

The coordinator emits these events, the SDK hands them on; `exspec.wire.convert_generation` carries
them over the wire.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from exspec.core.acceptance import FinishReason
from exspec.core.choosing import TokenLogprobs
from exspec.core.errors import ExspecError
from exspec.core.params import SamplingParams, SpeculationParams, check_priority


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Plain text, tokenized with the model's special tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids, taken as they are."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation; the model's chat template is applied by the coordinator."""

    messages: tuple[ChatMessage, ...]


Prompt = TextPrompt | TokenPrompt | ChatPrompt


@dataclass(frozen=True, slots=True)
class Resume:
    """What a client has of a generation whose call broke: its tokens, and what Started said.

    `max_tokens` 0: decided anew; `prompt_sha256` empty: not compared. `seed` None: the request's
    own, or none was needed.
    """

    token_ids: tuple[int, ...]
    model_fingerprint: str
    max_tokens: int = 0
    prompt_sha256: bytes = b""
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One generation. Empty `request_id`: drawn by the coordinator. Empty `model`: the only one.

    `sampling.max_tokens` is only the bound the client gave if `has_max_tokens`; else it may be
    lowered to what the context leaves. Lower `priority` is served sooner. Requests of one `group`
    share one turn in the queue, and `drawn_seed` is for one that samples and has no seed; they do
    not travel, the servicer gives them to sequences of one batch.
    `resume`: go on after these tokens instead of from the beginning.

    Raises:
        InvalidRequestError: when `priority` is out of bounds.
    """

    prompt: Prompt
    sampling: SamplingParams = field(default_factory=SamplingParams)
    speculation: SpeculationParams = field(default_factory=SpeculationParams)
    request_id: str = ""
    model: str = ""
    has_max_tokens: bool = True
    priority: int = 0
    group: str = ""
    drawn_seed: int | None = None
    resume: Resume | None = None

    def __post_init__(self) -> None:
        check_priority(self.priority)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens in and out; a final stop token counts."""

    num_prompt_tokens: int
    num_generated_tokens: int


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """How speculation went. A round is a target pass that decided something for this sequence."""

    num_rounds: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_wasted_tokens: int = 0
    """Draft tokens that came from a draft worker and were not committed."""
    num_drafts_per_position: tuple[int, ...] = ()
    """In how many rounds a draft token was verified as the first, second, … of its round."""
    num_accepted_per_position: tuple[int, ...] = ()
    """How many of those were accepted."""
    num_looked_up_tokens: int = 0
    """How many of the draft tokens were looked up; the others are a draft model's."""
    num_accepted_looked_up_tokens: int = 0
    """How many of those were accepted."""

    @property
    def num_model_tokens(self) -> int:
        """Draft tokens of a draft model."""
        return self.num_draft_tokens - self.num_looked_up_tokens

    @property
    def num_accepted_model_tokens(self) -> int:
        """How many of those were accepted."""
        return self.num_accepted_tokens - self.num_accepted_looked_up_tokens

    @property
    def acceptance_length(self) -> float:
        """Tokens per round, bonus token included: 1 + accepted / rounds (0.0 before a round)."""
        return 1 + self.num_accepted_tokens / self.num_rounds if self.num_rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Share of the draft tokens that were accepted (0.0 without drafts)."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0


@dataclass(frozen=True, slots=True)
class RequestTimings:
    """Seconds on the coordinator's clock.

    `queue_seconds` from arrival to the first order to a worker, `prefill_seconds` from there to the
    first generated token, `decode_seconds` from there to the end; the first two together are
    `time_to_first_token_seconds`, all of them `total_seconds`.
    """

    queue_seconds: float = 0.0
    time_to_first_token_seconds: float = 0.0
    total_seconds: float = 0.0

    @property
    def prefill_seconds(self) -> float:
        """From the first order to the first generated token."""
        return self.time_to_first_token_seconds - self.queue_seconds

    @property
    def decode_seconds(self) -> float:
        """From the first generated token to the end."""
        return self.total_seconds - self.time_to_first_token_seconds

    def seconds_per_token(self, num_generated_tokens: int) -> float:
        """Mean time per generated token after the first one (TPOT); 0.0 before there is a second.

        Tokens of one round come at once, so this is a mean over rounds as well.
        """
        return self.decode_seconds / (num_generated_tokens - 1) if num_generated_tokens > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Started:
    """First event: the request was accepted.

    What follows `num_prompt_tokens` is what a `Resume` needs; `seed` is the request's, or
    drawn for it; 0 if it has none and decoding is greedy.
    """

    request_id: str
    model: str
    num_prompt_tokens: int
    model_fingerprint: str = ""
    max_tokens: int = 0
    prompt_sha256: bytes = b""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Delta:
    """What was committed since the last delta.

    `text` may be empty while a character is incomplete. `logprobs` has one item per token id if
    they were asked for; `prompt_logprobs` come with the first delta, one item per token of the
    prompt from its second on (nothing precedes the first).
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Completed:
    """Last event."""

    finish_reason: FinishReason
    usage: Usage
    speculation: SpeculationStats = field(default_factory=SpeculationStats)
    timings: RequestTimings = field(default_factory=RequestTimings)
    stop_string: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """Last event of one prompt of a batch that failed; the others go on."""

    error: ExspecError


Event = Started | Delta | Completed
BatchEvent = Started | Delta | Completed | Failed
