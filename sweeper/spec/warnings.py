"""Warnings: configs that are valid but probably unintended. Pure: no clock, no disk, no cluster."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from sweeper.spec.batch import nearest_splitting_well, usable_micro_batches
from sweeper.spec.identity import MICRO
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.sentences import several
from sweeper.spec.spans import gradient_span

_LISTED = 6
#: Micro-batches below this part of the largest possible deserve a warning.
_SLOW_FRACTION = 4
#: What processes a micro-batch together, by the key that is then `micro`.
_PROCESSED_TOGETHER = {
    "bn_span": "bn_span=micro: BatchNorm",
    "loss_span": "Loss, batches or rates depend on the layout (see `sweeper doctor`): training",
}
_REMEDIES = {"bn_span": "Set bn_span", "loss_span": "Set micro_batch and devices"}
#: With at least this many parts per batch, variance-reduced optimizers' weights are hardly biased.
_FEW_PARTS = 8
#: conf/module/classifier.yaml's base_lr, meant for SGD; choosing another optimizer keeps it.
_RATE_OF_SGD = 0.025
#: Fraction of an epoch by which runs may differ without a warning.
_EVEN = 0.01


def find_warnings(
    specs: Sequence[RunSpec], fails: Mapping[str, int | None]
) -> dict[str, list[str]]:
    """The warnings of a grid, by run id.

    Args:
        specs: every run of the grid.
        fails: by run id, the smallest micro-batch known to need too much memory; may lack runs.
    """
    by_kind = dict[str, list[str]]()
    for spec in specs:
        if spec.kind not in by_kind:
            by_kind[spec.kind] = [*_find_in_run(spec, fails.get(spec.run_id))]
    found = {spec.run_id: [*by_kind[spec.kind]] for spec in specs}

    def tell(runs: Iterable[RunSpec], warning: str) -> None:
        for spec in runs if warning else ():
            found[spec.run_id].append(warning)

    by_size = dict[int, list[RunSpec]]()
    for spec in (spec for spec in specs if not spec.config.batch_unit):
        by_size.setdefault(spec.config.data.num_train_examples, []).append(spec)
    for alike in by_size.values():
        tell(alike, _uneven_epochs(alike))
    for key in MICRO:
        follow = [spec for spec in specs if getattr(spec.config, key) == "micro"]
        tell(follow, _varying_spans(follow, key))
    tell(specs, _same_trainings(specs))
    return found


def _same_trainings(specs: Sequence[RunSpec]) -> str:
    """A warning if runs have the same learning rate at each step as another; else empty."""
    trainings = dict[str | None, list[RunSpec]]()
    for spec in specs:
        trainings.setdefault(spec.lr_equivalence_id, []).append(spec)
    trainings.pop(None, None)
    same = [runs for runs in trainings.values() if len(runs) > 1]
    if not same:
        return ""
    points = dict[str, None]()
    for first, *others in same:
        for spec in others:
            keys = [key for key in spec.words if spec.words[key] != first.words.get(key)]
            keys = [key for key in keys if key in first.words]
            pair = [" ".join(f"{k}={s.words[k][0]}" for k in keys) for s in (spec, first)]
            points[f"{pair[0]} as {pair[1]} at batch={spec.config.batch}"] = None
    num = sum(map(len, same)) - len(same)
    return (
        f"{several(num, 'run')} {'has' if num == 1 else 'have'} the same learning rate at each "
        f"step as another, and so the same result: {_first_of(list(points))}."
    )


def _find_in_run(spec: RunSpec, fails: int | None) -> Iterator[str]:
    config = spec.config
    milestones = getattr(config.growing or config.schedule, "milestones", ())
    unit = config.growth_unit if config.growing else config.warmup_unit or "epochs"
    trained, warmup = _convert_length(spec, unit)
    # a growth waits for a whole number of the larger batches
    starts = [spec.batch_plan.steps_before(epoch) + step for epoch, step in spec.batch_plan.grown]
    late = [at for at, start in zip(milestones, starts, strict=False) if start >= spec.total_steps]
    if silent := [at for at in milestones if at >= trained or at in late]:  # as 90 of 90 epochs
        yield (
            f"schedule.milestones {silent} never fire: the training has {trained:g} {unit}, "
            f"counted from 0. Lower them, or train longer than {max(silent):g} {unit}."
        )
    if early := [at for at in milestones if at < warmup]:
        yield (
            f"schedule.milestones {early} come before the end of the warmup of {warmup:g} {unit}: "
            f"the rate never reaches its peak. Move them, or warm up for fewer {unit}."
        )
    span = config.optimizer.gradient_span
    if span and config.optimizer.weighs_gradients and config.batch < _FEW_PARTS * span:
        yield (
            f"batch={config.batch} has {config.batch // span} parts of optimizer.gradient_span="
            f"{span}: with fewer than {_FEW_PARTS}, chance decides how {config.optimizer.name} "
            "weighs gradients, so its effective rate changes with the batch. Lower "
            "optimizer.gradient_span."
        )
    name = config.optimizer.name
    if config.base_lr == _RATE_OF_SGD and name.lower() not in ("sgd", "nesterov", "vr_sgd"):
        yield f"base_lr={_RATE_OF_SGD} is the default, which is for SGD. Give optimizer={name} one."
    if config.optimizer.target == "pytorch_optimizer.SOAP" and not config.reproducible:
        yield (
            f"optimizer={name} amplifies rounding errors, so the layout changes the results. Add "
            "reproducible=true and a micro_batch to compare runs on several layouts."
        )
    for key, what in _PROCESSED_TOGETHER.items():
        if getattr(config, key) == "micro":
            yield (
                f"{what} follows the micro-batch, so the layout changes the results. "
                f"{_REMEDIES[key]} to compare runs."
            )
    if slow := slow_split(spec, fails):
        yield slow


def _convert_length(spec: RunSpec, unit: str) -> tuple[float, float]:
    steps, warmup = spec.total_steps, spec.schedule.warmup_steps
    return {
        "epochs": (spec.length, spec.schedule.warmup_epochs),
        "steps": (steps, warmup),
        "examples": (spec.batch_plan.examples_before(spec.epochs), warmup * spec.config.batch),
        "percent": (100, 100 * warmup / steps),
    }[unit]


def slow_split(spec: RunSpec, fails: int | None) -> str:
    """A warning if the batch only splits into far smaller micro-batches than fit; else empty.

    Args:
        spec: the run.
        fails: the smallest micro-batch that needs too much memory; None if none is known.
    """
    config, ranks = spec.config, spec.split.world_size
    span = 1 if config.bn_span == "micro" else spec.bn_span
    share = spec.split.rank_batch
    if gradient_span(config) is not None or share % span:
        return ""  # the method, or spans over several ranks, decide
    limit = config.micro_batch_limit if fails is None else min(config.micro_batch_limit, fails - 1)
    usable = usable_micro_batches(share, limit=limit, bn_span=span)
    reach = min(share, limit)
    if not usable or usable[-1] * _SLOW_FRACTION >= reach:
        return ""
    batches = nearest_splitting_well(config.batch, world_size=ranks, limit=limit, bn_span=span)
    nearest = ", ".join(f"batch={b}" for b in batches)
    return (
        f"batch={config.batch} is slow on {several(ranks, 'rank')}: its share of {share} only "
        f"divides into micro-batches of {usable[-1]}, {share // usable[-1]} in each step, where up "
        f"to {reach} would be possible. Nearest that split well: {nearest}."
    )


def _uneven_epochs(specs: Sequence[RunSpec]) -> str:
    """A warning if epochs leave out very different parts of the same examples; else empty."""
    left_out = {spec.config.batch: spec.dropped_examples for spec in specs}
    examples = specs[0].config.data.num_train_examples
    if max(left_out.values()) - min(left_out.values()) <= _EVEN * examples:
        return ""
    each = [f"{left_out[batch]:,} at batch={batch}" for batch in sorted(left_out)]
    even = sorted({batch for spec in specs if (batch := _nearest_even(spec))})
    nearest = f" Nearest batches that leave out less than 1 %: {_first_of([*map(str, even)])}."
    return (
        f"an epoch has whole batches only, so of {examples:,} examples it leaves out "
        f"{_first_of(each)}: the runs differ in more than their batch.{nearest * bool(even)}"
    )


def _nearest_even(spec: RunSpec) -> int | None:
    """The nearest batch of which whole ones make an epoch, up to 1 % of it, on these ranks."""
    batch, examples = spec.config.batch, spec.config.data.num_train_examples
    unit = spec.split.world_size * (1 if spec.config.bn_span == "micro" else spec.bn_span)
    near = range(max(1, batch // 2 // unit) * unit, min(2 * batch, examples) + 1, unit)
    even = [other for other in near if examples % other <= _EVEN * examples]
    return min(even, key=lambda other: abs(other - batch), default=None)


def _varying_spans(follow: Sequence[RunSpec], key: str) -> str:
    """A warning if a span follows the micro-batch and varies over runs; else empty."""
    runs: dict[int, dict[str, None]] = {}
    for spec in follow:
        ranks = spec.split.world_size
        where = f"batch={spec.config.batch}" + (f" on {ranks} ranks" if ranks > 1 else "")
        runs.setdefault(spec.split.micro_batch, {})[where] = None
    if len(runs) < 2:
        return ""
    spans = "; ".join(f"{micro} at {_first_of(list(runs[micro]))}" for micro in sorted(runs))
    return (
        f"{_PROCESSED_TOGETHER[key]} follows the micro-batch, which varies over these runs, so "
        f"they differ in more than their overrides: {spans}. Set micro_batch to a number"
        f"{', or bn_span' if key == 'bn_span' else ''}."
    )


def _first_of(words: Sequence[str]) -> str:
    more = len(words) - _LISTED
    return ", ".join(words[:_LISTED]) + (f" and {more} more" if more > 0 else "")
