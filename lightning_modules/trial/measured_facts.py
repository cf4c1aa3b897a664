"""What a plan must know of a user's project: counted, and measured by short runs."""

import os
import pickle
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch.nn.parameter import is_lazy

from lightning_modules.data.batch_counts import item_count
from lightning_modules.data.batches import VAL_BATCH
from lightning_modules.data.counted_loaders import count_data, is_iterable, most_ranks
from lightning_modules.data.randomness import seed_everything
from lightning_modules.data.user_loaders import OwnExamples
from lightning_modules.modules.classifier import build_classifier
from lightning_modules.modules.components import user_batch_size
from lightning_modules.modules.user_project import build_data, build_module
from lightning_modules.process.output import quieten
from lightning_modules.process.saved_classes import find_saved_classes
from lightning_modules.trial.findings import (
    TOLERANCE,
    Finding,
    judge_layouts,
    judge_ranks,
    judge_resume,
    judge_seeds,
)
from lightning_modules.trial.layout_arms import (
    BATCHNORMS,
    EVERY_LAYER,
    KEPT,
    PARTS,
    LayoutArm,
    Retry,
    Trial,
)
from sweeper.spec.config import OWN_OPTIMIZER, Component, is_ours, run_config
from sweeper.spec.guarantee_names import RESUMES, SAME, SEEDS_APPLY
from sweeper.spec.sentences import several
from sweeper.spec.worker_args import CHECKPOINT

_MOST_PARAMETERS = 500_000_000
_RANKS = 2  # that train an arm together
_LONGEST_S = 600  # of the arms on one rank, and of those on two [seconds]
Found = dict[str, Finding]


def facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """What can only be known by making the user's module and data, and training them.

    Args:
        config: resolved, of a run.

    Returns:
        `num_train_examples`; for data without indices `is_iterable` and `most_ranks`; for a
        user's module or model also `has_batchnorm`, `is_automatic` (whether Lightning steps the
        optimizer), `found` (a `Finding` for each guarantee, by name) and, if the data have no size
        of their own, `val_batch`, the examples of a validation batch. `refused` has errors of runs
        that our code would not train: `always`, with a `bn_span` or on several `ranks`.

    Raises:
        ValueError: if the examples have no order that could be the run's, or the items of a batch
            cannot be counted; if the module has data of its own but is to be trained on ours, or
            the user's network cannot be made for the data.
    """
    torch.set_num_threads(1)  # threads would be lost in the processes that train
    seed_everything(config["seed"])
    described = {key: value for key, value in config["data"].items() if key != "about"}
    data = build_data(described, config["module"]["_target_"], 1)
    if isinstance(data, pl.LightningDataModule):
        quieten()
        data.trainer = pl.Trainer(accelerator="cpu", devices=1, logger=False)  # it may ask for it
        data.prepare_data()
        data.setup("fit")
    found = _count(config, data)
    model = config.get("model")
    if is_ours(config["module"]["_target_"]) and (model is None or is_ours(model["_target_"])):
        return found
    is_users = isinstance(data, pl.LightningDataModule)
    if not (is_users and user_batch_size(config["data"]["_target_"])):
        found["val_batch"] = VAL_BATCH
    seed_everything(config["seed"])
    module = _build_trained(config, data)
    if not is_users and is_overridden("train_dataloader", module):
        msg = (
            "a module with data of its own must not be trained on other data; got "
            f"{type(module).__name__}.train_dataloader and "
            f"data._target_={config['data']['_target_']}. Move its loaders into a "
            "LightningDataModule, and name that with data._target_=."
        )
        raise ValueError(msg)
    found["has_batchnorm"] = any(isinstance(layer, BATCHNORMS) for layer in module.modules())
    found["is_automatic"] = module.automatic_optimization
    low = [n for n, p in module.named_parameters() if p.dtype in (torch.bfloat16, torch.float16)]
    size = sum(p.numel() for p in module.parameters() if not is_lazy(p))
    has_own_optimizer = not is_ours(config["module"]["_target_"]) and is_overridden(
        "configure_optimizers", module
    )
    kind = config["data"].get("name") or type(data).__name__
    shape, num_classes = getattr(data, "input_shape", ()), getattr(data, "num_classes", 0)
    del data, module  # large ones may not fit twice
    measured: Found = {}
    refused: dict[str, str] = {}
    if not config["trial"] or size > _MOST_PARAMETERS:
        measured[SAME] = _TOO_LARGE if config["trial"] else _SKIPPED
    elif found["num_train_examples"] < PARTS:
        measured[SAME] = _TOO_FEW
    else:
        own = {**config["data"]}
        own.setdefault("num_train_examples", found["num_train_examples"])
        trial = Trial(
            config=run_config({**config, "data": own, "bn_span": None, "compile": None}),
            is_own=has_own_optimizer and config["optimizer"]["_target_"] == OWN_OPTIMIZER,
            is_split=found["is_automatic"] and not found.get("is_iterable"),
        )
        measured, has_batchnorm, refused = _measure_in_processes(trial)
        if "always" in refused and not is_users:
            refused["always"] += (
                f" The examples of {kind} have shape {shape}, in {num_classes} classes."
            )
        if low and measured[SAME].holds:
            measured[SAME] = replace(measured[SAME], **_describe_sums(low[0]))
        found["has_batchnorm"] |= has_batchnorm
    findings = {name: asdict(finding) for name, finding in measured.items()}
    return {**found, "found": findings, "refused": refused}


def _count(config: Mapping[str, Any], data: Any) -> dict[str, Any]:
    """The number of training examples, and whether they have indices."""
    if not isinstance(data, pl.LightningDataModule):
        return {"num_train_examples": data.num_train_examples}
    loader = data.train_dataloader()
    if config.get("loss_items"):
        item_count(config["loss_items"])(next(iter(loader)))
    if not is_iterable(loader):
        examples = OwnExamples(loader, seed=0)
        found = {"num_train_examples": examples.num_train_examples}
        if config.get("batch_unit") == "tokens":
            counts = examples.count_tokens(item_count(config["loss_items"]))
            found |= {"epoch_tokens": int(counts.sum()), "longest_example": int(counts.max())}
        return found
    stated = config["data"].get("num_train_examples")
    num = count_data(loader) if stated is None else stated
    most = most_ranks(loader.dataset)
    return {"num_train_examples": num, "is_iterable": True, "most_ranks": most}


def _build_trained(config: Mapping[str, Any], data: Any) -> pl.LightningModule:
    """The user's module, or our classifier with the user's model."""
    if not is_ours(config["module"]["_target_"]):
        return build_module(config["module"])
    return build_classifier(
        Component.model_validate(config["model"]),
        data,
        label_smoothing=config["label_smoothing"],
        zero_init_last_norm=config["zero_init_last_norm"],
    )


def _measure_in_processes(trial: Trial) -> tuple[Found, bool, dict[str, str]]:
    """What was found of a project, whether it has BatchNorm once it is set up, and what is refused.

    Each part is measured in a process of its own, so that ranks begin without threads.
    """
    try:
        ((found, whole, trial),) = _in_forks(partial(_measure, trial))
    except TimeoutError as error:
        return {SAME: replace(_TOO_LONG, message=f"not determined: {error}")}, False, {}
    refused = {"always": _refute_first_step(whole), "bn_span": whole.no_span}
    refused["lengths"] = whole.no_lengths
    over = several(trial.micro_batches, "micro-batch")
    if found[SAME].holds:
        with tempfile.TemporaryDirectory() as folder:
            of_ranks = (partial(_train_rank, trial, Path(folder), rank) for rank in range(_RANKS))
            try:
                arms = _in_forks(*of_ranks)
            except TimeoutError as error:
                arms = [LayoutArm(error=str(error))]
        refused["ranks"] = arms[0].refusal
        if error := next((arm.error for arm in arms if arm.error), None):
            message = f"{found[SAME].message}, on one rank; on two: {error}"
            found[SAME] = replace(found[SAME], message=message)
        elif differs := judge_ranks(whole, arms, trial.tolerance):
            kept = {"settings": found[SAME].settings, "in_float32": found[SAME].in_float32}
            found[SAME] = replace(differs, **kept)
        else:
            over += f", {_RANKS} ranks"
        found[SAME] = replace(found[SAME], over=over)
    has_batchnorm = trial.span is not None or bool(trial.in_evaluation)
    return found, has_batchnorm, {key: why for key, why in refused.items() if why}


def _refute_first_step(whole: LayoutArm) -> str:
    """Why no run would take its first step; empty if one did, or where a CPU cannot tell."""
    if whole.steps or whole.refusal or not whole.error:
        return "" if whole.steps else whole.refusal
    error = whole.error.rpartition(", in ")[0] or whole.error  # without the user's path
    if re.search("cuda|gpu|triton|Diverged", error, re.IGNORECASE):
        return ""
    return (
        f"the first training step must not fail; got {whole.error}. Correct the class, or the "
        "settings that it is given; trial=false trains it all the same."
    )


def _measure(trial: Trial) -> tuple[Found, LayoutArm, Trial]:
    """Train on one rank, and judge; the arm with one micro-batch per step, and what was tried."""
    quieten()
    with tempfile.TemporaryDirectory() as folder:
        places = (Path(folder, str(number), "arm") for number in count())
        whole, trial = _train_first(trial, places)
        if whole.converts:
            trial = replace(trial, tolerance=TOLERANCE["32-true"])
        other = trial.train(next(places), seed=trial.config.seed + 1, begins_only=True)
        described = trial.config.resolved
        settings = {
            f"{key}.{k}": v for key in ("module", "data") for k, v in described[key].items()
        }
        same = _NOT_SPLIT
        if trial.is_split:
            split = whole if whole.error else trial.train(next(places), parts=PARTS)

            def repeat() -> tuple[LayoutArm, LayoutArm]:
                still = replace(trial, in_evaluation=EVERY_LAYER)
                return still.train(next(places)), still.train(next(places), parts=PARTS)

            same = judge_layouts(whole, split, repeat, trial.tolerance)
        classes: tuple[str, ...] = ()
        resumed = whole
        if not whole.error:
            classes = tuple(find_saved_classes(whole.folder / CHECKPOINT))
            place = next(places)
            place.mkdir(parents=True)
            shutil.copy(whole.folder / KEPT, place / CHECKPOINT)
            resumed = replace(trial, trusted=classes).train(place)
        found = {
            SAME: replace(same, settings=whole.settings, in_float32=trial.is_in_float32),
            RESUMES: replace(judge_resume(whole, resumed, trial.tolerance), classes=classes),
            SEEDS_APPLY: judge_seeds(whole, other, trial.config.seed, settings),
        }
    for step in whole.steps:
        step.batches.clear()  # any objects
    return found, whole, trial


def _train_first(trial: Trial, places: Iterator[Path]) -> tuple[LayoutArm, Trial]:
    """The first arm, in the first precision and kind of BatchNorm that the project takes."""
    in_float32 = {"precision": "32-true", "tolerance": TOLERANCE["32-true"]}
    tried = [trial, replace(trial, **in_float32)]
    if trial.span is not None:
        tried += [replace(one, span=None, in_evaluation=BATCHNORMS) for one in tried]
    first: tuple[LayoutArm, Trial] | None = None
    for one in tried:
        try:
            arm = one.train(next(places), is_first=True)
        except Retry as retry:
            return _train_first(retry.trial, places)
        if not arm.error:
            arm.no_span = first[0].refusal if first and one.in_evaluation else ""
            return arm, one
        first = first or (arm, one)
    assert first is not None, "several were tried"
    return first


def _train_rank(trial: Trial, folder: Path, rank: int) -> LayoutArm:
    """The arm of one of two ranks."""
    quieten()
    _join_ranks(folder, rank, _RANKS)
    arm = trial.train(folder / "arm", parts=PARTS, ranks=_RANKS, rank=rank)
    for step in arm.steps:
        step.batches.clear()
    return arm


def _join_ranks(folder: Path, rank: int, ranks: int) -> None:
    """Meet the other ranks in a folder."""
    number = str(rank)
    os.environ.update(LOCAL_RANK=number, NODE_RANK="0", RANK=number, WORLD_SIZE=str(ranks))
    store = dist.FileStore(str(folder / "rendezvous"), ranks)
    longest = timedelta(seconds=_LONGEST_S)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=longest)


def _in_forks(*jobs: Callable[[], Any]) -> list[Any]:
    """What functions return, each in a process of its own.

    Raises:
        TimeoutError: if one takes longer than `_LONGEST_S`.
        RuntimeError: if one ends in another way.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, str(number)) for number in range(len(jobs))]
        sys.stdout.flush()
        sys.stderr.flush()
        started = [_fork(job, path) for job, path in zip(jobs, paths, strict=True)]
        ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in started]
        if -signal.SIGALRM in ends:
            msg = f"the trial of the module took longer than {_LONGEST_S} s"
            raise TimeoutError(msg)
        if any(ends):
            msg = f"the trial of the module must end; a process of it ended with {ends}"
            raise RuntimeError(msg)
        return [pickle.loads(path.read_bytes()) for path in paths]


def _fork(job: Callable[[], Any], path: Path) -> int:
    """Start a process that leaves what a function returns in a file; its id."""
    if pid := os.fork():
        return pid
    code = 1
    signal.alarm(_LONGEST_S)  # whatever it waits for, the kernel ends it
    try:
        torch.set_num_threads(1)  # makes the pool anew; two threads that do so at once crash
        path.write_bytes(pickle.dumps(job()))
        code = 0
    except BaseException:  # noqa: BLE001  nothing of the parent's is to go on here
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _describe_sums(name: str) -> dict[str, Any]:
    """Why numbers of few digits make layouts differ, though not in the trial's float64."""
    message = f"{name} has 16 bits: gradients of micro-batches are added in them, and round"
    do = "Leave the module in float32 and use precision=bf16-mixed; otherwise micro_batch counts."
    return {"holds": False, "message": message, "do": do, "is_layouts": True}


_SKIPPED = Finding(
    holds=None,
    message="not tried, as trial=false: nothing is guaranteed",
    do="Leave out trial=false.",
    is_layouts=True,
)
_TOO_LONG = Finding(
    holds=None,
    message="",
    do="`sweeper doctor` tries again; trial=false skips the trial. Training may be as slow.",
    is_layouts=True,
)
_TOO_LARGE = Finding(
    holds=None,
    message="not tried: the module is too large to be trained on a CPU",
    is_layouts=True,
)
_TOO_FEW = Finding(
    holds=None, message=f"not tried: it takes {PARTS} examples to split a step", is_layouts=True
)
_NOT_SPLIT = Finding(
    holds=None,
    message="not tried: with manual optimization, and with data that have no indices, a step is "
    "split in no other way",
)
