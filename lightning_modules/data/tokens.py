"""Texts as arrays of tokens: bytes, or byte pairs by Hugging Face's tokenizers; no torch."""

import hashlib
import math
import os
import platform
import sys
import sysconfig
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sweeper.store.publish import open_partial

Tokens = npt.NDArray[np.integer]

_SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages"}


@cache
def _standard_library() -> bytes:
    """The sources of Python's standard library, in the order of the hashes of their paths.

    So the last sequences, which are for validation, are of all kinds of modules.
    """
    root = Path(sysconfig.get_path("stdlib"))
    paths = [path.relative_to(root).as_posix() for path in root.rglob("*.py")]
    paths = [path for path in paths if _SKIPPED.isdisjoint(path.split("/"))]
    paths.sort(key=lambda path: hashlib.blake2b(path.encode()).digest())
    return b"".join((root / path).read_bytes() for path in paths)


def embedded_version() -> str:
    """The version of Python and a hash of the sources, which a distribution may have changed."""
    digest = hashlib.blake2b(_standard_library(), digest_size=4).hexdigest()
    return f"{platform.python_version()}-{digest}"


def _read_text(root: str | None) -> bytes:
    if root is None:
        return _standard_library()
    if Path(root).is_file():
        return Path(root).read_bytes()
    if not Path(root, "state.json").exists() and not Path(root, "dataset_dict.json").exists():
        msg = (
            "data.root must be a text file, or a folder that save_to_disk of Hugging Face's "
            f"datasets has written; got data.root={root}, which is neither. Correct it."
        )
        raise ValueError(msg)
    datasets = _import("datasets", f"data.root={root}")
    found = datasets.load_from_disk(root)
    found = found["train"] if isinstance(found, datasets.DatasetDict) else found
    return "\n".join(found["text"]).encode()


#: Bytes; a larger vocabulary is learned.
BYTES = 256


def load_tokens(root: str | None, vocabulary: int) -> Tokens:
    """The tokens of a text, shape (n,); those of a byte-pair encoding are kept in the user's cache.

    Args:
        root: a text file, or a data set that Hugging Face's `datasets` has saved, with a column
            text; None for the embedded text.
        vocabulary: 256 for bytes; more for a byte-pair encoding that is learned from the first nine
            tenths of the text [tokens].

    Raises:
        ValueError: if there is no such text, a package is missing, or the vocabulary is too small.
    """
    if vocabulary < BYTES:
        msg = f"data.vocabulary must be {BYTES} (bytes) or more; got data.vocabulary={vocabulary}."
        raise ValueError(msg)
    text = _read_text(root)
    if vocabulary == BYTES:
        return np.frombuffer(text, np.uint8)
    tokenizers = _import("tokenizers", f"data.vocabulary={vocabulary}")
    of = f"{vocabulary} {tokenizers.__version__}".encode()
    name = hashlib.blake2b(text, digest_size=16, key=of).hexdigest()
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", f"sweeper/{name}.npy")
    with suppress(OSError, ValueError):
        return np.load(cached)
    sys.stderr.write(f"Learning {vocabulary:,} tokens from a text, once ...\n")
    tokens = _encode_pairs(tokenizers, text.decode(errors="replace"), vocabulary)
    with suppress(OSError):  # a home that cannot be written to
        cached.parent.mkdir(parents=True, exist_ok=True)
        with open_partial(cached) as partial, partial.open("wb") as file:
            np.save(file, tokens)
    return tokens


def _import(package: str, words: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        msg = f"{words} needs the package {package}. Install it: pip install {package}."
        raise ValueError(msg) from error


_LINES = 1000  # encoded together


def _encode_pairs(tokenizers: Any, text: str, vocabulary: int) -> Tokens:
    lines = text.splitlines(keepends=True)
    parts = ["".join(lines[i : i + _LINES]) for i in range(0, len(lines), _LINES)]
    encoder = tokenizers.Tokenizer(tokenizers.models.BPE())
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    encoder.pre_tokenizer = byte_level(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=byte_level.alphabet(), show_progress=False
    )
    encoder.train_from_iterator(parts[: math.ceil(len(parts) * 0.9)], trainer)
    kind = np.uint16 if vocabulary <= 2**16 else np.uint32
    return np.concatenate([np.array(part.ids, kind) for part in encoder.encode_batch(parts)])
