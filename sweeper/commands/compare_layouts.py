"""`sweeper equivalence`: train a run on several layouts and compare the weights.

The overrides are those of a sweep, for a single point. An epoch, or the length that they name, is
trained on each layout, in float64 and in float32, in a temporary results folder. With
`reproducible=true` the layouts are numbers of ranks that share a micro-batch, and they must agree
to the last bit.
"""

import argparse
import multiprocessing
import re
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from math import isclose, isnan
from pathlib import Path
from typing import Any

from rich.console import Console

from sweeper.commands.checks.check import Severity
from sweeper.commands.checks.project import project_checks
from sweeper.commands.refusals import refuse
from sweeper.commands.show_plan import configs_of, overrides_parser, plan_grid
from sweeper.commands.user_facts import add_facts, has_own_code
from sweeper.console.fitted_table import Column, FittedTable
from sweeper.console.printing import note, text_console
from sweeper.launch.local.launcher import run_here
from sweeper.launch.local.slots import inspect_machine
from sweeper.planning.plan import claim_tasks, plan
from sweeper.spec.batch import BatchSplit
from sweeper.spec.config import LENGTHS, RunConfig
from sweeper.spec.outcomes import DONE, RUN_FAILED
from sweeper.spec.run_spec import RunSpec, run_spec
from sweeper.spec.sentences import several
from sweeper.spec.spans import gradient_span
from sweeper.spec.worker_args import CHECKPOINT
from sweeper.store.ledger import Ledger

_SAME_VALUE = 1e-6  # relative; a metric may amplify rounding
_COLUMNS = (
    "precision", "ranks", "micro", "acc", "steps", "lr", "value", "difference", "allowed",
    "verdict",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One layout after its epoch.

    `difference` is the largest relative difference of any tensor from the first layout, in
    `tensor`. `value` is the validation loss in nats per example, or the metric of a user's module,
    `same_lr` is whether every step's learning rate was that of the first layout, `first_value` is
    that layout's value.
    """

    split: BatchSplit
    precision: str
    difference: float
    same_lr: bool
    steps: int
    value: float
    first_value: float
    has_batchnorm: bool
    is_own: bool
    in_float32: bool
    is_reproducible: bool
    tensor: str = ""

    @property
    def allowed(self) -> float | None:
        """The guaranteed bound on the difference; None if there is none.

        With BatchNorm, training amplifies float32's rounding without a bound worth stating; float64
        proves the layouts equal. The optimizer of a user's module may amplify float64's too, as
        Adam does for small gradients.
        """
        if self.is_reproducible:
            return 0.0
        if self.precision == "64-true" and not self.in_float32:
            return 1e-9 if self.is_own else 1e-12
        is_bounded = self.precision in ("32-true", "64-true")
        return 1e-5 if is_bounded and not (self.is_own or self.has_batchnorm) else None

    @property
    def holds(self) -> bool:
        """Whether the layout gives the same result as the first."""
        if not self.same_training or self.allowed is None:
            return self.same_training
        tolerance = max(_SAME_VALUE, 100 * self.allowed)
        is_close = isclose(self.value, self.first_value, rel_tol=tolerance, abs_tol=tolerance)
        return is_close or (isnan(self.value) and isnan(self.first_value))

    @property
    def same_training(self) -> bool:
        """Whether the weights and the rates are those of the first layout."""
        return self.same_lr and (self.allowed is None or self.difference <= self.allowed)

    @property
    def verdict(self) -> str:
        """The verdict in a word, for the table."""
        if not self.holds:
            return "value DIFFERS" if self.same_training else "DIFFERS"
        if self.is_reproducible:
            return "bit-identical"
        return "rounding" if self.allowed is None else "same"


#: Ranks x accumulation steps.
LAYOUTS = "1x1,1x8,2x4,4x1"


def main(arguments: Sequence[str]) -> int:
    """Print the table of the overrides on the command line; return 1 if a layout differs."""
    options = _parser().parse_intermixed_args(arguments)
    try:
        planned, ledger = plan_grid(options.overrides, config_dir=options.config_dir)
        if len(planned.specs) > 1:
            msg = (
                f"the overrides must be those of one run; got {' '.join(options.overrides)}, which "
                f"makes {len(planned.specs)}. Give each key one value."
            )
            raise ValueError(msg)
        spec = planned.specs[0]
        is_short = not any(word.partition("=")[0] in LENGTHS for word in options.overrides)
        short: dict[str, Any] = {"warmup": 0}
        if is_short:
            short |= {"epochs": 1, "steps": None, "examples": None}
        growing = spec.config.growing  # with its milestones where they are in the run, if any
        if growing and growing.milestones:
            unit = spec.config.growth_unit
            short |= {"schedule": growing.model_dump(exclude_none=True), "warmup_unit": unit}
        config = spec.config.with_changes(**short, num_nodes=1)
        layouts, left_out = _feasible_layouts(config, options.layouts, ledger.results)
        configs = [config.with_changes(precision=word) for word in options.precision.split(",")]
    except ValueError as error:
        return refuse(error)
    console = text_console()
    if any(word.startswith("precision=") for word in options.overrides):
        given = f"precision={spec.config.precision} is replaced by {options.precision}"
        console.print(f"{given}; --precision sets it here.")
    for sentence in left_out:
        console.print(f"skipped layout (ranks x accumulation steps) {sentence}")
    try:
        in_float32 = bool(spec.facts.in_float32)
        rows = [r for changed in configs for r in compare(changed, layouts, in_float32=in_float32)]
    except ValueError as error:
        refuse(error, "The layouts could not be compared.")
        return RUN_FAILED
    show_layouts(rows, console)
    if all(row.holds for row in rows):
        return DONE
    if config.has_own_module and any(row.same_training and not row.holds for row in rows):
        console.print(_VALUE_DIFFERS)
    for tensor in sorted({row.tensor for row in rows if not row.same_training and row.tensor}):
        console.print(_TENSOR_DIFFERS.format(tensor))
    (given,) = configs_of(options.overrides, config_dir=options.config_dir)
    for reason in find_reasons(given):
        console.print(reason)
    return RUN_FAILED


_TENSOR_DIFFERS = (
    "The largest difference is in {}. If its exact gradient is 0, as for a bias before BatchNorm "
    "or a bias of attention's keys, it is trained on rounding errors, which Adam amplifies."
)


_VALUE_DIFFERS = (
    "The metric differs where the weights agree: what a module computes at the end of validation "
    "from outputs that it has kept is of one rank's examples. Log it in validation_step, or use a "
    "torchmetric."
)


def find_reasons(config: dict[str, Any]) -> Iterator[str]:
    """What differs first in the trial of a user's module, and the remedy; nothing for our own."""
    if has_own_code(config["module"], config.get("model")):
        for check in project_checks(config):
            if check.severity is not Severity.GOOD:
                yield f"{check.what}: {check.found}. {check.do}".strip()


def compare(
    config: RunConfig, layouts: Sequence[dict[str, int]], *, in_float32: bool = False
) -> Iterator[Trained]:
    """Train an epoch on each layout and compare with the first; ValueError if any fails."""
    with tempfile.TemporaryDirectory(prefix="sweeper-equivalence-") as folder:
        configs = [config.with_changes(**layout, keep_checkpoint=True) for layout in layouts]
        trained = [
            _train_epoch(
                changed, Ledger(Path(folder) / str(index)), f"{index + 1} of {len(layouts)}"
            )
            for index, changed in enumerate(configs)
        ]
        specs, rows, checkpoints = zip(*trained, strict=True)
        differences, has_batchnorm = differences_between(checkpoints)
        value = "metric" if config.has_own_module else "val_loss"
        for spec, row, (difference, tensor) in zip(specs, rows, differences, strict=True):
            yield Trained(
                split=spec.split,
                precision=config.precision,
                difference=difference,
                tensor=tensor,
                # These rates depend on the rounded gradients; comparing weights is enough.
                same_lr=row["lr_series_hash"] == rows[0]["lr_series_hash"]
                or config.lr_rule.name == "adascale"
                or config.schedule.name == "adaptive_batch",
                steps=row["steps"],
                value=row[value],
                first_value=rows[0][value],
                has_batchnorm=has_batchnorm,
                is_own=config.has_own_module,
                in_float32=in_float32,
                is_reproducible=bool(config.reproducible),
            )


def _train_epoch(
    config: RunConfig, ledger: Ledger, which: str
) -> tuple[RunSpec, dict[str, Any], Path]:
    ledger.prepare()
    planned = plan([config.resolved], ledger)
    (spec,) = planned.specs
    to_do = claim_tasks(planned, ledger, retry=None, rerun=None)
    split = spec.split
    parts = f"{several(split.accumulation_steps, 'micro-batch')} of {split.micro_batch}"
    words = f"{several(split.world_size, 'rank')}, each with {parts} per step"
    note(f"Training an epoch in {config.precision} on layout {which}: {words} ...")
    for event in run_here(to_do, ledger, inspect_machine(jobs="auto", runs_per_gpu=1)):
        for text in event.said:
            note(text)
    columns = ["outcome", "reason", "steps", "val_loss", "metric", "lr_series_hash"]
    (row,) = ledger.rows({spec.run_id}, columns).values()
    if row["outcome"] != "finished":
        msg = f"every layout must finish training; {spec.point} {row['outcome']}: {row['reason']}"
        if config.precision == "64-true":
            msg += (
                ". If that is because of float64, make tensors in the precision of the module, "
                "such as x.new_zeros(3), or compare with --precision 32-true."
            )
        raise ValueError(msg)
    return spec, row, ledger.run_folder(spec.run_id) / CHECKPOINT


def differences_between(checkpoints: Sequence[Path]) -> tuple[list[tuple[float, str]], bool]:
    """The relative difference of each from the first, and whether the model has BatchNorm.

    Computed in another process, so that the command never imports torch. ValueError if it dies.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("forkserver")) as pool:
        try:
            return pool.submit(_compare_there, checkpoints).result()
        except BrokenProcessPool as error:
            msg = (
                "the process that compares the weights must finish; it was killed, perhaps for "
                "lack of memory. Free some memory and repeat the command."
            )
            raise ValueError(msg) from error


def _compare_there(checkpoints: Sequence[Path]) -> tuple[list[tuple[float, str]], bool]:
    from lightning_modules.modules.checkpoint_diff import has_batchnorm, relative_differences

    return relative_differences(checkpoints), has_batchnorm(checkpoints[0])


def _feasible_layouts(
    config: RunConfig, layouts: str, results: Path
) -> tuple[list[dict[str, int]], list[str]]:
    """The layouts that split the batch exactly, and why the others cannot."""
    feasible: list[dict[str, int]] = []
    left_out: list[str] = []
    for layout in layouts.split(","):
        changes = _layout_settings(config, layout)
        if changes is None:
            parts = " x ".join(layout.split("x"))
            left_out.append(f"{layout}: batch={config.batch} is no multiple of {parts}.")
        elif changes not in feasible:
            try:
                list(map(run_spec, add_facts([config.with_changes(**changes).resolved], results)))
            except ValueError as error:
                left_out.append(f"{layout}: {error}")
            else:
                feasible.append(changes)
    if len(feasible) < 2:
        msg = f"at least two layouts must fit; {' '.join(left_out)} Choose another batch."
        raise ValueError(msg)
    return feasible, left_out


def _layout_settings(config: RunConfig, layout: str) -> dict[str, int] | None:
    """The settings for ranks x accumulation steps; None if the batch does not split that way."""
    if not (numbers := re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", layout.strip())):
        msg = (
            "a layout must be ranks x accumulation steps, both 1 or more; "
            f"got --layouts {layout}. Write 2x4."
        )
        raise ValueError(msg)
    world_size, accumulation_steps = map(int, numbers.groups())
    if config.reproducible or gradient_span(config) is not None:
        return {"devices": world_size}  # the micro-batch is fixed, whatever the accumulation
    parts = world_size * accumulation_steps
    if config.batch % parts:
        return None
    return {"devices": world_size, "micro_batch": config.batch // parts}


def show_layouts(rows: Sequence[Trained], console: Console) -> None:
    """Print a line for each layout, and what the columns are."""
    cells = [
        (
            row.precision,
            str(row.split.world_size),
            str(row.split.micro_batch),
            str(row.split.accumulation_steps),
            str(row.steps),
            "same" if row.same_lr else "DIFFERS",
            f"{row.value:.6f}",
            f"{row.difference:.1e}" if row.difference else "0",
            "-" if row.allowed is None else f"{row.allowed:.0e}" if row.allowed else "0",
            row.verdict,
        )
        for row in rows
    ]
    columns = zip(_COLUMNS, zip(*cells, strict=True), strict=True)
    table = FittedTable([Column(head=head, cells=texts) for head, texts in columns])
    console.print(table, soft_wrap=False)
    console.print(
        "micro: examples of a micro-batch. acc: accumulation steps. value: the validation loss, or "
        "the metric of your own module. difference: the largest over the model's tensors, "
        "relative to the tensor's largest value, compared with the first layout after one epoch. "
        "With BatchNorm, training amplifies float32 rounding, so no bound is guaranteed; use "
        "float64 (docs/layouts.md)."
    )


def _parser() -> argparse.ArgumentParser:
    parser = overrides_parser("equivalence", __doc__)
    parser.add_argument(
        "--layouts",
        default=LAYOUTS,
        help="ranks x accumulation steps, comma-separated (default: %(default)s)",
    )
    parser.add_argument(
        "--precision", default="64-true,32-true", help="comma-separated (default: %(default)s)"
    )
    return parser
