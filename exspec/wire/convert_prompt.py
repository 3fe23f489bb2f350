"""Messages with a prompt, or with what is to be resumed, to our values and back. Nowhere else.

Sizes are bounded here, before anything is tokenized: an error names the field and its bound.
"""

from __future__ import annotations

from exspec.core import generation as values
from exspec.core.errors import InvalidRequestError
from exspec.v1 import generation_pb2 as pb

MAX_PROMPT_BYTES = 1024 * 1024
"""Of one prompt as it travels, all messages of a conversation together."""
MAX_PROMPT_TOKENS = 1024 * 1024
MAX_MESSAGES = 4096


def prompt_to_message(prompt: values.Prompt) -> pb.Prompt:
    """A prompt as it travels."""
    match prompt:
        case values.TextPrompt(text):
            return pb.Prompt(text=text)
        case values.TokenPrompt(token_ids):
            return pb.Prompt(token_ids=pb.TokenIds(ids=token_ids))
        case values.ChatPrompt(messages):
            chat = [pb.ChatMessage(role=m.role, content=m.content) for m in messages]
            return pb.Prompt(chat=pb.Chat(messages=chat))


def prompt_from_message(message: pb.Prompt) -> values.Prompt:
    """A prompt; InvalidRequestError when it is missing, empty or too large."""
    match message.WhichOneof("content"):
        case "text":
            if not message.text:
                raise InvalidRequestError("prompt must not be empty", field="prompt")
            _check_size(message, MAX_PROMPT_BYTES)
            return values.TextPrompt(message.text)
        case "token_ids":
            num_tokens = len(message.token_ids.ids)
            if not num_tokens:
                raise InvalidRequestError("prompt must hold at least one token", field="prompt")
            check_num_ids("prompt", num_tokens)
            return values.TokenPrompt(tuple(message.token_ids.ids))
        case "chat":
            return _chat(message)
        case _:
            raise InvalidRequestError("prompt is missing", field="prompt")


def check_num_ids(field: str, num_tokens: int) -> None:
    """InvalidRequestError when a list of token ids is longer than any prompt may be."""
    if num_tokens > MAX_PROMPT_TOKENS:
        raise InvalidRequestError(
            f"{field} may hold at most {MAX_PROMPT_TOKENS} token ids, got {num_tokens}",
            field=field,
        )


def resume_to_message(resume: values.Resume) -> pb.Resume:
    """What is to be resumed, as it travels."""
    return pb.Resume(
        token_ids=resume.token_ids,
        model_fingerprint=resume.model_fingerprint,
        max_tokens=resume.max_tokens,
        prompt_sha256=resume.prompt_sha256,
        seed=resume.seed,
    )


def resume_from_message(message: pb.Resume) -> values.Resume | None:
    """What is to be resumed; None when nothing is. InvalidRequestError names the field."""
    if message == pb.Resume():
        return None
    check_num_ids("resume", len(message.token_ids))
    if message.token_ids and not message.model_fingerprint:
        raise InvalidRequestError(
            "resume needs the model_fingerprint that the broken call started with", field="resume"
        )
    return values.Resume(
        tuple(message.token_ids),
        message.model_fingerprint,
        message.max_tokens,
        message.prompt_sha256,
        message.seed if message.HasField("seed") else None,
    )


def _chat(message: pb.Prompt) -> values.ChatPrompt:
    messages = message.chat.messages
    if not messages:
        raise InvalidRequestError("prompt must hold at least one message", field="prompt")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequestError(
            f"prompt may hold at most {MAX_MESSAGES} messages, got {len(messages)}",
            field="prompt",
        )
    _check_size(message, MAX_PROMPT_BYTES)
    return values.ChatPrompt(tuple(values.ChatMessage(m.role, m.content) for m in messages))


def _check_size(message: pb.Prompt, max_bytes: int) -> None:
    if (num_bytes := message.ByteSize()) > max_bytes:
        raise InvalidRequestError(
            f"prompt may have at most {max_bytes} bytes, got {num_bytes}", field="prompt"
        )
