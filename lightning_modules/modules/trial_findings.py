"""What is guaranteed for a user's module and data, tried in a few micro-batches on a CPU."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import pytorch_lightning as pl
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader

from lightning_modules.data.own_loaders import Request
from lightning_modules.modules.item_findings import (
    ITEMS,
    Finding,
    check_items,
    describe_error,
    error_finding,
)
from lightning_modules.modules.trial_steps import Result, TrialSteps
from lightning_modules.process.output import quieten
from lightning_modules.run_class import do_nothing, run_class
from sweeper.spec.guarantee_names import (
    ADDITIVE,
    FIXED_RATES,
    KEYED_DRAWS,
    SEEDS_APPLY,
    SEPARATE_ITEMS,
    WHOLE_CHECKPOINT,
)

#: Examples that are tried: two micro-batches of four [examples].
EXAMPLES = 8
_TOLERANCE = {"64-true": 1e-9, "32-true": 1e-4}  # relative tolerance, by precision
_MOST_PARAMETERS = 500_000_000


def findings(
    make_module: Callable[[], pl.LightningModule],
    data: pl.LightningDataModule,
    loader: "DataLoader[Any]",
    examples: Sequence[Request],
    weigh: Callable[[Any], float] | None = None,
) -> dict[str, dict[str, Any]]:
    """What holds for a user's project, by the names in `sweeper/spec/guarantee_names.py`.

    Args:
        make_module: the module, with the same weights each time.
        data: set up; its loaders are replaced.
        loader: of its training examples.
        examples: a few of them.
        weigh: counts what the loss of a batch is a mean over; None for its examples.
    """
    quieten()
    for name in ("prepare_data", "setup"):
        run_class(data).wrap(name, do_nothing)
    found = check_items(loader, examples[:ITEMS])
    found |= dict.fromkeys((ADDITIVE, FIXED_RATES, KEYED_DRAWS, WHOLE_CHECKPOINT), _TOO_LARGE)
    for precision in _TOLERANCE:  # a module that makes float32 tensors fails with 64-true
        module = make_module()
        if sum(p.numel() for p in module.parameters() if not is_lazy(p)) > _MOST_PARAMETERS:
            break
        steps = TrialSteps(loader, examples, weigh, precision).run(module, data)
        found |= {
            ADDITIVE: replace(_check_additive(steps), in_float32=steps.arithmetic == "32-true"),
            FIXED_RATES: replace(_check_rates(steps), settings=steps.settings),
            KEYED_DRAWS: _check_draws(steps),
            WHOLE_CHECKPOINT: replace(_check_checkpoint(steps), classes=tuple(steps.saved_classes)),
        }
        if steps.error is None:
            break
    if found[SEPARATE_ITEMS].holds is False and found[ADDITIVE].holds:
        found[SEPARATE_ITEMS] = _SAME_LOSS
    elif found[SEPARATE_ITEMS].holds is False:
        found[ADDITIVE] = _PARTS_DIFFER
    return {name: asdict(finding) for name, finding in found.items()}


def check_seeds(
    seeds: Sequence[object], seed: int, settings: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Whether initial weights follow the run's seed, by the guarantee's name.

    Args:
        seeds: what generators were seeded with as the module and the data were made.
        seed: the run's.
        settings: of the module and the data.
    """
    found = _NOTHING_SEEDED
    if others := [other for other in seeds if other != seed]:
        message = (
            f"the module or the data seeds the generators with {others[0]} when created: runs with "
            "different seeds start from the same weights and understate the variation over seeds"
        )
        found = Finding(holds=False, message=message, do=_SEED_NOTHING)
    elif seeds and (given := [k for k, v in settings.items() if "seed" in k and v == seed]):
        message = f"the module or the data seeds with {seed}, the run's seed, which {given[0]} is"
        found = Finding(holds=True, message=message, seed=seed)
    elif seeds:
        message = f"not determined: the module or the data seeds with {seed}, as the run does"
        found = Finding(holds=None, message=message)
    return {SEEDS_APPLY: asdict(found)}


_NOTHING_SEEDED = Finding(holds=True, message="neither module nor data seeds a global generator")
_SEED_NOTHING = "Seed nothing in __init__, or use the run's seed: '+module.seed=${seed}'."
_TOO_LARGE = Finding(holds=None, message="not tested: the module is too large to be tried on a CPU")


def _check_additive(steps: TrialSteps) -> Finding:
    mode = "eval" if any(result.drew for result in steps.mode_results("fixed")) else "fixed"
    results = steps.mode_results(mode)
    if not steps.is_made("fixed"):
        return _explain_stop(steps)
    if not steps.is_made(mode) or any(result.drew for result in results):
        return _DRAWS_ANYWAY
    if not results:
        return _NOT_ACCUMULATED
    found = _compare_windows(results, _TOLERANCE[steps.arithmetic])
    alone = steps.mode_results("fixed")[0].loss
    for result in steps.mode_results("within") if found.holds else ():
        loss, tolerance = result.loss, _TOLERANCE[steps.arithmetic]
        if loss and alone and not math.isclose(loss, alone, rel_tol=tolerance):
            return _COUNTS_PARTS
    names = steps.changed_within
    if not (found.holds and names):
        return found
    more = f" and {len(names) - 3} more" * (len(names) > 3)
    message = (
        f"every micro-batch, not every step, changes {', '.join(names[:3])}{more}: each layout "
        "trains with different values"
    )
    return Finding(holds=False, message=message, do=_ONCE_A_STEP)


def _compare_windows(results: Sequence[Result], tolerance: float) -> Finding:
    """Whether the loss and the gradient of each window are the means of its parts'."""
    for at in range(0, len(results), 5):
        whole, *parts = results[at : at + 5]
        for pair in (parts[:2], parts[2:]):
            if finding := _compare_window(whole, pair, tolerance):
                return finding
    has_slope = any(r.gradient is not None and r.gradient.any() for r in results)
    return _ADDITIVE if has_slope else _FLAT


def _compare_window(whole: Result, pair: Sequence[Result], tolerance: float) -> Finding | None:
    """What is wrong with a window and two parts of it; None if nothing is."""
    given = [values for result in (whole, *pair) if (values := result.values)]
    if len(given) < len(pair) + 1:
        return Finding(holds=None, message="not determined: training_step returned no loss")
    (loss, gradient), *parts = given
    if not math.isfinite(loss):
        return Finding(holds=None, message=f"not determined: the loss of some examples is {loss}")

    def differ(factors: Sequence[float]) -> bool:
        loss_error = abs(_weighted_sum(factors, losses) - loss)
        gradient_error = float((_weighted_sum(factors, gradients) - gradient).norm())
        is_far = gradient_error > tolerance * float(gradient.norm())
        return is_far or loss_error > tolerance * abs(loss)

    losses, gradients = zip(*parts, strict=True)
    total = sum(part.weight for part in pair)
    weights = [part.weight / total for part in pair]
    if not differ(weights):
        return None
    kind = "not a mean" if differ([1, 1]) else "a sum"
    mean_of_parts = _weighted_sum(weights, losses)
    is_shown = f"{loss:.6g}" != f"{mean_of_parts:.6g}"
    same = "" if is_shown else " (the gradient or a later digit differs)"
    message = (
        f"the loss of some examples is {loss:.6g}, but the mean over their parts "
        f"{mean_of_parts:.6g}{same}: it is {kind}, so each layout has a different gradient"
    )
    return Finding(
        holds=False, message=message, do=_NO_MEAN if kind == "not a mean" else _TAKE_MEANS
    )


def _weighted_sum(factors: Sequence[float], terms: Sequence[Any]) -> Any:
    return sum(factor * term for factor, term in zip(factors, terms, strict=True))


def _check_rates(steps: TrialSteps) -> Finding:
    if not steps.rates or not all(steps.rates):
        return _NO_RATES if steps.error is None else _explain_stop(steps)
    if steps.followed:
        return replace(_FOLLOWS, message=_FOLLOWS.message.format(steps.followed))
    plain, *others = steps.rates
    if all(rates == plain for rates in others):
        return _SAME_RATES
    here, there = next(
        pair for rates in others for pair in zip(plain, rates, strict=True) if pair[0] != pair[1]
    )
    message = (
        f"a learning rate of {here:g} is {there:g} with other ranks or micro-batches: each layout "
        "has another schedule"
    )
    return Finding(holds=False, message=message, do=_SCALE_WITH_BATCH)


def _check_draws(steps: TrialSteps) -> Finding:
    if steps.changed is None:
        return _explain_stop(steps)
    if not steps.is_made("keyed"):
        assert steps.error is not None, "else all passes were made"
        message = (
            f"with dropout masks per example, a training step raises {describe_error(steps.error)}"
        )
        return Finding(holds=False, message=message, do="A run may raise the same error.")
    if not steps.mode_results("keyed")[0].drew:
        # If the module is additive without dropout, it must be so with masks by example.
        fixed, tolerance = steps.mode_results("fixed"), _TOLERANCE[steps.arithmetic]
        drew = any(result.drew for result in fixed)
        if drew or not (fixed and _compare_windows(fixed, tolerance).holds):
            return _ALL_KEYED
        return (
            _ALL_KEYED
            if _compare_windows(steps.mode_results("keyed"), tolerance).holds
            else _OTHER_MASKS
        )
    known = f" ({', '.join(steps.drawing_layers)})" if steps.drawing_layers else ""
    message = (
        "a training step draws at random outside dropout layers, or in layers whose rows are not "
        f"the examples{known}: the draws depend on the micro-batch"
    )
    return Finding(holds=False, message=message, do=_DRAW_IN_LAYERS)


def _check_checkpoint(steps: TrialSteps) -> Finding:
    if steps.changed is None:
        return _explain_stop(steps)
    if steps.unsaved is not None:
        return replace(error_finding("a checkpoint", steps.unsaved), holds=False)
    if not steps.changed:
        return _NOTHING_LOST
    names = ", ".join(steps.changed)
    if steps.saved_by:
        message = f"not determined: a step changes {names}, which {steps.saved_by} may save"
        return Finding(holds=None, message=message)
    message = f"a step changes {names}, which no checkpoint contains: it is lost when a run resumes"
    return Finding(holds=False, message=message, do=_REGISTER)


def _explain_stop(steps: TrialSteps) -> Finding:
    assert steps.error is not None, "else all passes were made"
    return error_finding("a training step", steps.error)


_ADDITIVE = Finding(
    holds=True, message="a micro-batch's loss and gradient are the means of its parts'"
)
_FLAT = Finding(
    holds=None,
    message="not determined: the gradient of so few examples is 0, as with a triplet loss",
)
_TAKE_MEANS = (
    "Take the mean over examples. As it is, micro_batch and the number of ranks are part of the "
    "run's identity."
)
_NO_MEAN = (
    "If it is a mean over tokens or boxes, set loss_items. A loss that compares examples, such as "
    "a contrastive one, needs no change: micro_batch and the number of ranks are part of the run's "
    "identity."
)
_NOT_ACCUMULATED = Finding(
    holds=None, message="not tested: with manual optimization nothing is accumulated"
)
_PARTS_DIFFER = Finding(holds=None, message="not determined: examples depend on their neighbours")
_SAME_LOSS = Finding(
    holds=True,
    message="what depends on an example's neighbours, such as offsets of bags, is not in the loss",
)
_COUNTS_PARTS = Finding(
    holds=False,
    message="the loss of a micro-batch depends on how many there are in a step, as with a loss "
    "divided by trainer.accumulate_grad_batches: each layout has another gradient",
    do="Take the mean over examples; it is divided by their number for you.",
)
_SAME_RATES = Finding(
    holds=True, message="learning rates are those of one rank without accumulation"
)
_FOLLOWS = Finding(
    holds=False,
    message="a ReduceLROnPlateau follows {} from step to step, which is that of the last "
    "micro-batch: each layout has another schedule",
    do="Let it follow the mean of an epoch (interval=epoch); otherwise compare only runs of one "
    "layout.",
)
_NO_RATES = Finding(holds=None, message="not determined: there are no learning rates to compare")
_SCALE_WITH_BATCH = (
    "Make the rates from self.trainer.world_size and num_training_batches in configure_optimizers, "
    "where they are the same on every layout; otherwise compare only runs of one layout."
)
_DRAWS_ANYWAY = Finding(
    holds=None,
    message="not determined: a training step draws at random, in evaluation mode too",
)
_ALL_KEYED = Finding(
    holds=True, message="a step draws nothing at random but dropout masks per example"
)
_DRAW_IN_LAYERS = (
    "For dropout, use layers with the examples first. Other draws, such as those of a VAE, need no "
    "change; compare runs with the same micro_batch."
)
_OTHER_MASKS = Finding(
    holds=False,
    message="the rows of a dropout layer are not the examples: masks depend on the micro-batch",
    do="Put the examples first (batch_first=True); otherwise compare only runs with the same "
    "micro_batch.",
)
_ONCE_A_STEP = (
    "Change it once per step, in on_before_zero_grad; otherwise compare only runs with the same "
    "micro_batch and devices."
)
_NOTHING_LOST = Finding(holds=True, message="all that a step changes is in the checkpoint")
_REGISTER = "Register it as a buffer, or use on_save_checkpoint and on_load_checkpoint."
