"""Tokenizers made in place, of the two kinds that matter for streaming: bytes, and metaspace."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors


def byte_level() -> Tokenizer:
    """One token per byte, as in GPT-2 without merges: id = byte; 256 is the special "<end>"."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable}
    characters |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    tokenizer = Tokenizer(models.BPE({c: byte for byte, c in characters.items()}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer


WORDS = {"<unk>": 0, "<s>": 1, "▁Hello": 2, "▁world": 3, "▁": 4, "!": 5, "A": 6, "B": 7}
BYTE_0 = 10
"""Id of the byte 0; byte b has id BYTE_0 + b."""


def metaspace() -> Tokenizer:
    """As in SentencePiece: ▁ for a space, bytes for what has no token, <s> before every text."""
    vocabulary = WORDS | {f"<0x{byte:02X}>": BYTE_0 + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer
