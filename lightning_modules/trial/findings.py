"""What holds for a user's project, judged by what differs first between short runs."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lightning_modules.data.batch_counts import count_examples
from lightning_modules.trial.examples import is_same_example
from lightning_modules.trial.layout_arms import LATE, PARTS, LayoutArm, Step, Summary

TOLERANCE = {"64-true": 1e-9, "32-true": 1e-4}  # relative, by precision
_OF_RESUMES = 1e-3  # of that: nothing but the process differs


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Whether something holds, None if that could not be found out; why, and what to do.

    `is_layouts`: whether the layout is to be part of a run's identity; `over`: what was compared.
    `classes` are those of objects in checkpoints, which are read back only if they are trusted;
    `in_float32`: the module converts numbers to float32, whatever the precision; `seed` is the only
    one that it holds for, None for any; `settings` are those of each group of the module's
    optimizers.
    """

    holds: bool | None
    message: str
    do: str = ""
    is_layouts: bool = False
    over: str = ""
    classes: tuple[str, ...] = ()
    in_float32: bool = False
    seed: int | None = None
    settings: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs first: its kind, its 0-based epoch, what it is called, and its values."""

    kind: str
    epoch: int
    name: str
    here: float = 0.0
    there: float = 0.0


def judge_layouts(
    whole: LayoutArm,
    split: LayoutArm,
    repeat: Callable[[], tuple[LayoutArm, LayoutArm]],
    tolerance: float,
) -> Finding:
    """Whether a step in several micro-batches does what it does in one.

    Args:
        whole: the arm with one micro-batch per step.
        split: that with several.
        repeat: both again, with all layers in evaluation.
        tolerance: relative.
    """
    if finding := _explain_nothing(whole):
        return finding
    if split.error:
        return error_finding("a step in several micro-batches", split.error)
    first = find_difference(whole, split, tolerance)
    if first is None:
        return _explain_rates(whole) or _SAME
    one, other = whole, split
    draws = whole.drew or split.drew
    if first.kind != "rate" and not split.drew_between and (draws or whole.has_masks):
        one, other = repeat()
        if one.error or other.error or one.drew or other.drew:
            return _DRAWS_ANYWAY
        if (again := find_difference(one, other, tolerance)) is None:
            return _DRAWS if draws else _OTHER_MASKS
        first = again
    return _explain(first, one, other, f"in {PARTS} micro-batches")


def judge_ranks(whole: LayoutArm, ranks: Sequence[LayoutArm], tolerance: float) -> Finding | None:
    """What two ranks do otherwise than one; None if nothing."""
    steps = [
        replace(many[0], loss=sum(step.loss or 0.0 for step in many) / len(many), batches=[])
        for many in zip(*(arm.steps for arm in ranks), strict=True)
    ]
    joined = LayoutArm(steps=steps, logged=ranks[0].logged)
    first = find_difference(whole, joined, tolerance)
    return first and _explain(first, whole, joined, f"on {len(ranks)} ranks")


def judge_resume(whole: LayoutArm, resumed: LayoutArm, tolerance: float) -> Finding:
    """Whether a run that resumes after an epoch, with new objects, goes on as it would."""
    if finding := _explain_nothing(whole):
        return replace(finding, is_layouts=False)
    if resumed.error:
        message = f"a run that resumes raises {resumed.error}"
        return Finding(holds=False, message=message, do=_REGISTER)
    late = [step for step in whole.steps if step.epoch == LATE]
    rest = LayoutArm(steps=late, logged=whole.logged[len(whole.logged) - len(resumed.logged) :])
    first = find_difference(rest, resumed, tolerance * _OF_RESUMES)
    if first is None:
        return Finding(holds=True, message="the epoch after a resume is the same")
    if not _has_same_examples(rest, resumed, first):
        return _OTHER_EXAMPLES
    message = f"{_describe(first, 'after a resume')}: something is in no checkpoint"
    return Finding(holds=False, message=message, do=_REGISTER)


def judge_seeds(
    arm: LayoutArm, other: LayoutArm, seed: int, settings: Mapping[str, Any]
) -> Finding:
    """Whether initial weights follow the run's seed.

    Args:
        arm: of the run's seed.
        other: of the next seed; only begun.
        seed: the run's.
        settings: of the module and the data.
    """
    if others := [given for given in arm.seeds if given != seed]:
        message = (
            f"the module or the data seeds the generators with {others[0]}: runs with different "
            "seeds start from the same weights and understate the variation over seeds"
        )
        return Finding(holds=False, message=message, do=_SEED_NOTHING)
    if seed in other.seeds:
        if given := [k for k, v in settings.items() if "seed" in k and v == seed]:
            message = (
                f"the module or the data seeds with {seed}, the run's seed, which {given[0]} is"
            )
            return Finding(holds=True, message=message, seed=seed)
        message = f"not determined: the module or the data seeds with {seed}, as the run does"
        return Finding(holds=None, message=message)
    return Finding(holds=True, message="neither module nor data seeds a global generator")


def find_difference(one: LayoutArm, other: LayoutArm, tolerance: float) -> Difference | None:
    """What differs first: of each step loss, gradient, rates and state; then of the validations.

    Args:
        one: an arm.
        other: of the same steps, on another layout or after a resume.
        tolerance: relative.
    """
    scale = max((abs(step.loss or 0.0) for step in one.steps), default=0.0)
    for a, b in zip(one.steps, other.steps, strict=False):
        for difference in _differences(a, b, scale, tolerance):
            return difference
    if len(one.steps) != len(other.steps):
        last = one.steps[-1].epoch if one.steps else 0
        return Difference("steps", last, "the number of steps", len(one.steps), len(other.steps))
    for a, b in zip(one.logged, other.logged, strict=False):
        for name in sorted(a.keys() | b.keys()):
            here, there = a.get(name, math.nan), b.get(name, math.nan)
            is_close = math.isclose(here, there, rel_tol=tolerance, abs_tol=tolerance)
            if not is_close and not (math.isnan(here) and math.isnan(there)):
                return Difference("value", one.steps[-1].epoch, name, here, there)
    return None


def _differences(a: Step, b: Step, scale: float, tolerance: float) -> Iterator[Difference]:
    if abs((a.loss or 0.0) - (b.loss or 0.0)) > tolerance * scale:
        yield Difference("loss", a.epoch, "the loss", a.loss or 0.0, b.loss or 0.0)
    norm = math.hypot(*(norm for _, norm, _ in a.gradient.values()))
    pairs = _far_apart(a.gradient, b.gradient, lambda _: tolerance * norm)
    for name, here, there in pairs:
        yield Difference("gradient", a.epoch, f"the gradient of {name}", here, there)
    for here, there in zip(a.rates, b.rates, strict=False):
        if not math.isclose(here, there, rel_tol=1e-12):
            yield Difference("rate", a.epoch, "a learning rate", here, there)
    for name, here, there in _far_apart(a.state, b.state, lambda norm: tolerance * norm):
        if not (math.isnan(here) and math.isnan(there)):  # not set yet: what is used is in the loss
            yield Difference("state", a.epoch, name, here, there)


def _far_apart(
    one: Mapping[str, Summary], other: Mapping[str, Summary], allowed: Callable[[float], float]
) -> Iterator[tuple[str, float, float]]:
    """Tensors whose sum or norm differs by more than is allowed for the norm, with their norms.

    Some are as large as the micro-batch, so those of other sizes are not compared.
    """
    for name in sorted(one.keys() & other.keys()):
        (total, norm, size), (total_2, norm_2, size_2) = one[name], other[name]
        largest = max(abs(total - total_2), abs(norm - norm_2))
        if size == size_2 and not largest <= allowed(max(norm, norm_2)):
            yield name, norm, norm_2
    for name in sorted(one.keys() ^ other.keys()):
        here, there = (arm.get(name, (0.0, 0.0, 0))[1] for arm in (one, other))
        yield name, here, there


def _has_same_examples(one: LayoutArm, other: LayoutArm, at: Difference) -> bool:
    """Whether the first step of an epoch had the same examples, as far as they can be compared."""
    whole, parts = (
        next((step.batches for step in arm.steps if step.epoch == at.epoch), [])
        for arm in (one, other)
    )
    if len(whole) != 1 or not parts:
        return True
    try:
        size = count_examples(whole[0])
    except ValueError:
        return True
    few = size // len(parts)
    found = [
        is_same_example(whole[0], parts[place // few], (place, place % few), (size, few))
        for place in range(few * len(parts))
    ]
    return False not in found


def _explain_nothing(whole: LayoutArm) -> Finding | None:
    """Why nothing can be said; None if something can."""
    if whole.error:
        return error_finding("a training step", whole.error)
    if not any(norm for step in whole.steps for _, norm, _ in step.gradient.values()):
        return _FLAT
    return None


def _explain_rates(whole: LayoutArm) -> Finding | None:
    """How schedulers depend on the layout, which a few steps may not show; None if they do not."""
    if whole.followed:
        return replace(_FOLLOWS, message=_FOLLOWS.message.format(whole.followed))
    if not all(whole.rates):
        return _NO_RATES
    plain, *others = whole.rates or [[]]
    for rates in others:
        for here, there in zip(plain, rates, strict=True):
            if here != there:
                message = (
                    f"a learning rate of {here:g} is {there:g} with other ranks or micro-batches: "
                    "each layout has another schedule"
                )
                return Finding(holds=False, message=message, do=_SCALE_WITH_BATCH, is_layouts=True)
    return None


def _explain(first: Difference, one: LayoutArm, other: LayoutArm, where: str) -> Finding:
    """The finding for a difference between layouts."""
    if not _has_same_examples(one, other, first):
        return _MIXED
    why, do = _REASONS[first.kind]
    if first.kind == "loss" and math.isclose(first.here, PARTS * first.there, rel_tol=1e-6):
        why, do = "it is a sum, or divided by the number of micro-batches too", _TAKE_MEANS
    return Finding(holds=False, message=f"{_describe(first, where)}: {why}", do=do, is_layouts=True)


def _describe(first: Difference, where: str) -> str:
    """Where two arms differ first, with both numbers."""
    here, there = f"{first.here:.6g}", f"{first.there:.6g}"
    if here == there:
        there = f"{first.there:.12g}"
    return f"{first.name} of epoch {first.epoch + 1} is {here}, but {there} {where}"


def error_finding(what: str, error: str) -> Finding:
    """The finding for an error that the user's code raised."""
    message = f"not determined: {what} on a CPU raised {error}"
    return Finding(holds=None, message=message, do="Training may fail too.", is_layouts=True)


_TAKE_MEANS = (
    "Take the mean over examples. As it is, micro_batch and the number of ranks are part of the "
    "run's identity."
)
_ONCE = (
    "Do it once per step, where trainer.global_step has changed (docs/layouts.md). As it is, "
    "micro_batch and the number of ranks are part of the run's identity."
)
#: Why something may differ first, and what to do, by kind.
_REASONS = {
    "loss": (
        "it is no mean over examples, or depends on how many micro-batches or ranks there are, on "
        "batch_idx, or on what a hook changes after every micro-batch",
        "If it is a mean over tokens or boxes, set loss_items. A loss that compares examples, such "
        "as a contrastive one, needs no change: micro_batch and the number of ranks are part of "
        "the run's identity.",
    ),
    "gradient": (
        "the loss is the same, so it is no mean over examples, or a hook changes the gradient of a "
        "micro-batch",
        _ONCE,
    ),
    "rate": ("a hook or a scheduler sets it by batch_idx or counts of the layout", _ONCE),
    "state": ("every micro-batch, not every step, changes it", _ONCE),
    "steps": ("a hook or a callback ends the training by what a layout has", _ONCE),
    "value": (
        "the steps are the same, so a callback, such as an average of weights, acts after every "
        "micro-batch, or validation depends on the ranks",
        _ONCE,
    ),
}
_SAME = Finding(holds=True, message="steps, rates and validation are the same")
_MIXED = Finding(
    holds=False,
    message="an example depends on its neighbours in the micro-batch, so on micro_batch and "
    "devices, or on a generator of the data set's own",
    do="Augment in the data set instead of the collate function, with torch's, Python's or NumPy's "
    "global generators, or compare only runs with the same layout.",
    is_layouts=True,
)
_OTHER_EXAMPLES = Finding(
    holds=False,
    message="data made a second time have other examples: a run that resumes, and other runs, see "
    "different data",
    do="Split with a fixed seed, draw from torch's, Python's or NumPy's global generators in the "
    "data set, and cache only what is the same each time.",
)
_FLAT = Finding(
    holds=None,
    message="not determined: the gradient of so few examples is 0, as with a triplet loss",
    is_layouts=True,
)
_DRAWS_ANYWAY = Finding(
    holds=None,
    message="not determined: a training step draws at random, in evaluation mode too",
)
_DRAW_IN_LAYERS = (
    "For dropout, use layers with the examples first. Other draws, such as those of a VAE, need no "
    "change; compare runs with the same micro_batch."
)
_DRAWS = Finding(
    holds=False,
    message="a training step draws at random outside dropout layers, or in layers whose rows are "
    "not the examples: the draws depend on the micro-batch",
    do=_DRAW_IN_LAYERS,
)
_OTHER_MASKS = Finding(
    holds=False,
    message="the rows of a dropout layer are not the examples: masks depend on the micro-batch",
    do="Put the examples first (batch_first=True); otherwise compare only runs with the same "
    "micro_batch.",
)
_FOLLOWS = Finding(
    holds=False,
    message="a ReduceLROnPlateau follows {} from step to step, which is that of the last "
    "micro-batch: each layout has another schedule",
    do="Let it follow the mean of an epoch (interval=epoch); otherwise compare only runs of one "
    "layout.",
    is_layouts=True,
)
_NO_RATES = Finding(
    holds=None,
    message="not determined: there are no learning rates to compare",
    is_layouts=True,
)
_SCALE_WITH_BATCH = (
    "Make the rates from self.trainer.world_size and num_training_batches in configure_optimizers, "
    "where they are the same on every layout; otherwise compare only runs of one layout."
)
_REGISTER = "Register it as a buffer, or use on_save_checkpoint and on_load_checkpoint."
_SEED_NOTHING = "Seed nothing, or use the run's seed: '+module.seed=${seed}'."
