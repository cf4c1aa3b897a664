"""The seal of a checkpoint: a checksum of its zip directory; its parts have their own checksums.

Zip readers check few of the directory's bits, and torch checks no checksums: with a bit flipped
there, torch may load another part's numbers.
"""

import errno
import zipfile
import zlib
from pathlib import Path

_SEAL = "sweeper {:08x}"
_LENGTH = len(_SEAL.format(0)).to_bytes(2, "little")
#: What zipfile raises for files with flipped bits: wrong names, offsets, methods, "encrypted".
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError)


def seal(checkpoint: Path) -> None:
    """Append the checksum, as the zip's comment, to a checkpoint that torch has saved."""
    with zipfile.ZipFile(checkpoint) as parts:
        start = parts.start_dir
    with checkpoint.open("rb+") as file:
        file.seek(start)
        directory = file.read()[: -len(_LENGTH)]  # the comment's length is at its end
        file.seek(start + len(directory))
        file.write(_LENGTH + _comment(directory))


def is_sound(checkpoint: Path) -> bool:
    """Whether a checkpoint matches all its checksums; True if there is no checkpoint.

    One without a seal is from an earlier version: then only its parts are checked.
    """
    if not checkpoint.exists():
        return True
    try:
        with zipfile.ZipFile(checkpoint) as parts, checkpoint.open("rb") as file:
            file.seek(parts.start_dir)
            directory = file.read()[: -len(_LENGTH + parts.comment)]
            has_its_seal = parts.comment in (b"", _comment(directory))
            return has_its_seal and parts.testzip() is None
    except _DAMAGED:
        return False
    except OSError as error:
        if error.errno == errno.EINVAL:  # an offset beyond the largest file
            return False
        raise


def _comment(directory: bytes) -> bytes:
    return _SEAL.format(zlib.crc32(directory)).encode()
