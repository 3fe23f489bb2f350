"""Tiny random models made in place, for every test that needs a real model but not a good one."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Glm4Config,
    GPT2Config,
    LlamaConfig,
    OPTConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from exspec.engine.loading import LoadedModel, ModelSettings, wrap_model

VOCAB_SIZE = 97
MAX_LENGTH = 256
FAMILIES = ("llama-gqa", "llama-mha", "qwen3", "glm4", "gpt2", "opt")
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}<end>"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
SPECIAL_TOKENS = ("<eos>", "<end>", "<user>", "<assistant>", "<system>", "<unk>")
"""Ids 0 to 5 of every tiny tokenizer; the first two end a generation."""


def tiny_config(family: str, vocab_size: int = VOCAB_SIZE) -> PretrainedConfig:
    """Two layers, 32 wide; pad = eos = 0 on purpose."""
    ids = {"vocab_size": vocab_size, "eos_token_id": 0, "pad_token_id": 0, "bos_token_id": 1}
    wide = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": MAX_LENGTH,
        "initializer_range": 0.5,
        "tie_word_embeddings": False,
    }
    if family == "llama-gqa":
        return LlamaConfig(**wide, **ids, num_key_value_heads=2)
    if family == "llama-mha":
        return LlamaConfig(**wide, **ids, num_key_value_heads=4)
    if family == "llama-tied":
        return LlamaConfig(**wide | {"tie_word_embeddings": True}, **ids, num_key_value_heads=4)
    if family == "qwen3":
        return Qwen3Config(**wide, **ids, num_key_value_heads=2, head_dim=8)
    if family == "glm4":
        return Glm4Config(**wide, **ids, num_key_value_heads=1, head_dim=8)
    return _learned_position_config(family, ids)


def _learned_position_config(family: str, ids: dict) -> PretrainedConfig:
    """Families with an embedding per position."""
    if family == "gpt2":
        return GPT2Config(
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=MAX_LENGTH,
            **ids,
            initializer_range=0.5,
            tie_word_embeddings=False,
        )
    if family == "opt":
        return OPTConfig(
            hidden_size=32,
            ffn_dim=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=MAX_LENGTH,
            word_embed_proj_dim=32,
            init_std=0.5,
            tie_word_embeddings=False,
            **ids,
        )
    raise ValueError(family)


def tiny_model(
    family: str, seed: int = 0, vocab_size: int = VOCAB_SIZE, dtype: torch.dtype = torch.float64
):
    """A random model whose greedy choices vary."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(tiny_config(family, vocab_size))
    with torch.no_grad():  # biases start at zero in every family; make them count
        for name, weights in model.named_parameters():
            if name.endswith("bias") and "norm" not in name and "ln_" not in name:
                weights.normal_(std=0.3)
    return model.to(dtype)


def tiny_loaded(family: str, seed: int = 0, **options) -> LoadedModel:
    """The same, wrapped as a loaded model without a tokenizer."""
    model = tiny_model(family, seed, **options)
    return wrap_model(model, ModelSettings(f"tiny-{family}"))


def save_tiny_model(
    directory: Path,
    seed: int = 0,
    vocab_size: int = 288,
    tokenizer_variant: str = "bytes",
    family: str = "llama-gqa",
) -> Path:
    """Write a loadable model directory: float32 weights, tokenizer, chat template, two eos ids.

    Tokenizer variants: "bytes" (6 special tokens, then one id per byte: 262 ids, any text),
    "words" (the special tokens and w6, w7, …), "none". `vocab_size` counts rows of the head and
    may exceed the tokenizer's ids.
    """
    model = tiny_model(family, seed, vocab_size, torch.float32)
    model.generation_config.eos_token_id = [0, 1]
    model.generation_config.pad_token_id = 0
    model.save_pretrained(directory)
    if tokenizer_variant != "none":
        _wrap_tokenizer(tiny_tokenizer(tokenizer_variant, vocab_size)).save_pretrained(directory)
    return directory


def tiny_tokenizer(variant: str, vocab_size: int) -> Tokenizer:
    """A byte-level or a word-level tokenizer."""
    names = list(SPECIAL_TOKENS)
    if variant == "bytes":
        names += sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE({n: i for i, n in enumerate(names)}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    elif variant == "words":
        names += [f"w{i}" for i in range(len(names), vocab_size)]
        vocabulary = {n: i for i, n in enumerate(names)}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        raise ValueError(variant)
    if len(names) > vocab_size:
        raise ValueError(f"{variant} needs a vocabulary of {len(names)} at least")
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def _wrap_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """transformers' wrapping of it, which writes the files."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<eos>",
        pad_token="<eos>",
        unk_token="<unk>",
        chat_template=CHAT_TEMPLATE,
    )
