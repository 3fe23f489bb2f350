"""From a request to the sequence it asks for: tokens, bounds, and what was generated before.

Everything a request can be refused for on its own, whatever else is going on. Slow parts
(tokenizing, replaying) are here, so it is called on a thread; it changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from coordinator.members import ServedModel
from coordinator.output import Output, SequenceSpec
from coordinator.rules import check_ids, resolve
from exspec.core.errors import ContextLengthError, InvalidRequestError, ResumeMismatchError
from exspec.core.generation import GenerationRequest, Resume, Started, TokenPrompt
from exspec.core.ids import SequenceId


@dataclass(frozen=True, slots=True)
class Admitted:
    """A sequence that can be opened, its output, and what its client is told first."""

    spec: SequenceSpec
    output: Output
    started: Started


def admit(
    request: GenerationRequest, model: ServedModel, context_length: int, sequence_id: SequenceId
) -> Admitted:
    """The sequence a request asks for, of at most `context_length` tokens.

    Raises:
        InvalidRequestError: a field is out of bounds, by name.
        ResumeMismatchError: what is to be resumed was made by another model, or prompt.
    """
    prompt_tokens = _prompt_tokens(request, model, context_length)
    max_tokens = _max_tokens(request, len(prompt_tokens), context_length)
    digest = sha256(",".join(map(str, prompt_tokens)).encode()).digest()
    resumed_tokens = ()
    if request.resume is not None:
        _check_resume(request.resume, model, digest, max_tokens)
        resumed_tokens = request.resume.token_ids
    resolved = resolve(request, model, len(prompt_tokens))
    spec = SequenceSpec(
        sequence_id,
        prompt_tokens,
        len(prompt_tokens) + max_tokens,
        resolved.stop_token_ids,
        request.sampling.stop,
        resumed_tokens,
        resolved.rules,
        request.sampling.min_tokens,
        request.sampling.include_stop_str_in_output,
    )
    output = Output(spec, model.codec.open_stream())
    output.replay()
    started = Started(
        request.request_id,
        model.facts.name,
        len(prompt_tokens),
        model.facts.fingerprint,
        max_tokens,
        digest,
        resolved.seed,
    )
    return Admitted(spec, output, started)


def _prompt_tokens(
    request: GenerationRequest, model: ServedModel, context_length: int
) -> tuple[int, ...]:
    if isinstance(request.prompt, TokenPrompt):
        _check_room(len(request.prompt.token_ids), context_length)
    prompt_tokens = model.codec.encode(request.prompt)
    _check_room(len(prompt_tokens), context_length)
    check_ids("prompt", prompt_tokens, model)
    return prompt_tokens


def _check_room(num_prompt_tokens: int, context_length: int) -> None:
    if num_prompt_tokens >= context_length:
        raise ContextLengthError(
            f"prompt has {num_prompt_tokens} tokens; the context is {context_length}, and at least "
            "one token must be left to generate",
            field="prompt",
        )


def _max_tokens(request: GenerationRequest, num_prompt_tokens: int, context_length: int) -> int:
    wanted, is_given = request.sampling.max_tokens, request.has_max_tokens
    if request.resume is not None and request.resume.max_tokens:
        wanted, is_given = request.resume.max_tokens, True
    room = context_length - num_prompt_tokens
    if wanted > room and is_given:
        raise ContextLengthError(
            f"max_tokens is {wanted} after a prompt of {num_prompt_tokens} tokens; the context "
            f"is {context_length}, so at most {room} can be generated",
            field="max_tokens",
        )
    most = min(wanted, room)
    if request.sampling.min_tokens > most:
        raise InvalidRequestError(
            f"min_tokens is {request.sampling.min_tokens}; at most {most} can be generated",
            field="min_tokens",
        )
    return most


def _check_resume(resume: Resume, model: ServedModel, digest: bytes, max_tokens: int) -> None:
    served = model.facts
    is_fresh = not resume.token_ids and not resume.model_fingerprint
    if resume.model_fingerprint != served.fingerprint and not is_fresh:
        raise ResumeMismatchError(
            f"the generation was begun with another model (fingerprint "
            f"{resume.model_fingerprint[:12]}) than {served.name!r} as it is served now "
            f"({served.fingerprint[:12]}): its tokens would be mixed"
        )
    if resume.prompt_sha256 and resume.prompt_sha256 != digest:
        raise ResumeMismatchError("the prompt comes to other tokens than those it began with")
    if len(resume.token_ids) > max_tokens:
        raise InvalidRequestError(
            f"resume has {len(resume.token_ids)} tokens; max_tokens is {max_tokens}",
            field="resume",
        )
    check_ids("resume", resume.token_ids, model)
