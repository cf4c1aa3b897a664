"""What holds for the items of a user's data set, tried with a few of them."""

import sysconfig
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from lightning_modules.data.own_loaders import Request, load_example, make_batch
from lightning_modules.data.randomness import generator_states, keep_generators, seed_generators
from lightning_modules.modules.comparisons import fingerprint, is_same_example
from sweeper.spec.guarantee_names import KEYED_ITEMS, SEPARATE_ITEMS

ITEMS = 3  # number that is tried
#: Folders of code that is not the user's.
_OURS = (str(Path(__file__).parents[2] / name) for name in ("lightning_modules", "sweeper"))
_NOT_THE_USERS = (*_OURS, *sysconfig.get_paths().values(), "<")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Whether something holds, None if that could not be found out; why, and what to do.

    `classes` are those of objects in checkpoints, which are read back only if they are trusted;
    `in_float32`: the module converts numbers to float32, whatever the precision; `seed` is the only
    one that it holds for, None for any; `settings` are those of each group of the module's
    optimizers.
    """

    holds: bool | None
    message: str
    do: str = ""
    classes: tuple[str, ...] = ()
    in_float32: bool = False
    seed: int | None = None
    settings: tuple[dict[str, Any], ...] = ()


def check_items(loader: "DataLoader[Any]", examples: Sequence[Request]) -> dict[str, Finding]:
    """Whether items are keyed and separate, by the guarantees' names."""
    try:
        twice = [fingerprint_items(loader, examples) for _ in range(2)]
        (first, drew), (second, drew_again) = (zip(*asked, strict=True) for asked in twice)
        if None in first:
            nothing = Finding(holds=None, message="not determined: the items cannot be compared")
            return dict.fromkeys((KEYED_ITEMS, SEPARATE_ITEMS), nothing)
        if first != second:
            return {KEYED_ITEMS: _OWN_GENERATORS, SEPARATE_ITEMS: _ITEMS_DIFFER}
        keyed = _KEPT if all(drew) and not any(drew_again) else _KEYED
        many = make_batch(loader, examples)
        alone = [make_batch(loader, [example]) for example in examples]
    except Exception as error:  # noqa: BLE001  whatever the user's data set raises
        return dict.fromkeys(
            (KEYED_ITEMS, SEPARATE_ITEMS), error_finding("loading an example", error)
        )
    same = {is_same_example(many, own, i, len(examples)) for i, own in enumerate(alone)}
    separate = _NOT_COMPARED if None in same else MIXED if False in same else _SEPARATE
    return {KEYED_ITEMS: keyed, SEPARATE_ITEMS: separate}


def fingerprint_items(
    loader: "DataLoader[Any]", examples: Sequence[Request]
) -> list[tuple[bytes | None, bool]]:
    """The fingerprint of each item, and whether it drew from a generator, seeded by its words."""

    def fetch(example: Request) -> tuple[bytes | None, bool]:
        seed_generators(0, *example.words)
        before = generator_states()
        return fingerprint(load_example(loader, example)), generator_states() != before

    with keep_generators():
        return [fetch(example) for example in examples]


def check_passes(loader: "DataLoader[Any]") -> dict[str, dict[str, Any]]:
    """The finding for iterable data whose passes differ under the same key; empty if not."""
    dataset: Any = loader.dataset

    def begin() -> list[bytes | None]:
        seed_generators(0, 0)
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(0)
        return [fingerprint(item) for item in islice(iter(dataset), ITEMS)]

    try:
        with keep_generators():
            repeats = begin() == begin()
    except Exception as error:  # noqa: BLE001  whatever the user's data set raises
        return {KEYED_ITEMS: asdict(error_finding("loading an example", error))}
    return {} if repeats else {KEYED_ITEMS: asdict(_OTHER_PASSES)}


def error_finding(what: str, error: Exception) -> Finding:
    """The finding for an error that the user's code raised."""
    message = f"not determined: {what} on a CPU raised {describe_error(error)}"
    return Finding(holds=None, message=message, do="Training may fail too.")


def describe_error(error: BaseException) -> str:
    """The text of an error, on a single line, with the user's line that raised it."""
    text = " ".join("".join(traceback.format_exception_only(error)).split())
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
    return f"{text.rstrip('.')}, in {own[-1].filename}, line {own[-1].lineno}" if own else text


_KEYED = Finding(holds=True, message="an item read twice for the same epoch and index is the same")
_OWN_GENERATORS = Finding(
    holds=False,
    message="an item read twice for the same epoch and index differs: resumed runs and other "
    "layouts see different data",
    do="Draw from torch's, Python's or NumPy's global generators in the data set, not its own.",
)
_OTHER_PASSES = Finding(
    holds=False,
    message="two passes for the same epoch begin with different items: other runs, and a run that "
    "resumes, see different data",
    do="Draw from torch's, Python's or NumPy's global generators in the data set, and follow "
    "set_epoch instead of counting passes.",
)
OTHER_EXAMPLES = Finding(
    holds=False,
    message="data made a second time begin with other examples: each run, and a run that resumes, "
    "trains and validates on a split of its own",
    do="Split with a fixed seed.",
)
_KEPT = Finding(
    holds=False,
    message="an item draws at random only when it is read first: resumed runs and other ranks, "
    "which have not cached it, draw another",
    do="Cache only what is the same each time, or draw all of it in setup.",
)
_ITEMS_DIFFER = Finding(holds=None, message="not determined: the items differ from read to read")
_NOT_COMPARED = Finding(
    holds=None, message="not determined: no part of a batch has an entry for each example"
)
_SEPARATE = Finding(
    holds=True, message="an example is the same whatever else is in its micro-batch"
)
MIXED = Finding(
    holds=False,
    message="an example depends on its neighbours in the micro-batch, so on micro_batch and "
    "devices",
    do="Augment in the data set instead of the collate function, or compare only runs with the "
    "same layout.",
)
