"""Fields of a message that this version does not know: what they ask for cannot be done.

Protocol buffers keep them in silence. A request that was built for a newer server is refused
instead, so that nobody takes an answer for what was not served.
"""

from __future__ import annotations

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from exspec.core.errors import InvalidRequestError


def refuse_unknown_fields(message: Message) -> None:
    """InvalidRequestError if a message, or one inside it, has a field that is not known."""
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    if known.ByteSize() != message.ByteSize():
        _refuse(message, "")


def refuse_unknown_at_top(message: Message, path: str = "") -> None:
    """The same of the message alone, not of those inside it; `path` is where it is."""
    for field in UnknownFieldSet(message):
        where = f" ({path})" if path else ""
        raise InvalidRequestError(
            f"{message.DESCRIPTOR.name}{where} has a field number {field.field_number}, which "
            "this version does not know",
            field=path,
        )


def _refuse(message: Message, path: str) -> None:
    """Find the first unknown field; it may be in a list of messages."""
    refuse_unknown_at_top(message, path)
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else (value,):
                _refuse(inner, f"{path}.{field.name}" if path else field.name)
