"""The memory of a few steps by class, with fake tensors, which compute nothing, if possible."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from lightning_modules.memory.short_run import (
    check_accumulation,
    least_micro_batch,
    train_short_run,
    with_short_run,
)
from lightning_modules.memory.tensors import TensorMemory
from lightning_modules.process.memory import peak_of_process_gib
from lightning_modules.run_class import run_class
from sweeper.spec.config import RunConfig
from sweeper.spec.method_checks import gradient_span
from sweeper.spec.run_memory import MemoryTrace
from sweeper.spec.run_spec import RunSpec, run_spec
from sweeper.upstream.torchs import (
    FakeAnswers,
    fake_tensor_mode,
    make_fake,
    tree_leaves,
    tree_map,
)

_GIB = 2**30


def memory_trace(config: RunConfig) -> MemoryTrace:
    """What the memory of a run consists of, for any micro-batch.

    Two micro-batches are traced, or the single one that a method prescribes.
    """
    torch.set_num_threads(config.threads)
    spec, why_not = run_spec(config), ""
    least = least_micro_batch(spec.bn_span)
    sizes = [size for size in (least, 2 * least) if size <= config.data.num_train_examples]
    if gradient_span(config) is not None or config.bn_span == "micro":
        sizes = [spec.split.micro_batch]
    fits: dict[int, _TracedFit] = {}
    for micro_batch in sizes:
        for is_fake in (True, False):
            try:
                fits[micro_batch] = with_short_run(
                    config, micro_batch, partial(_trace_steps, is_fake=is_fake)
                )
            except Exception as error:  # noqa: BLE001  whatever the module does with fake tensors
                traceback.print_exc()
                raised = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
                why_not = f"first steps on a CPU raised {raised}, and those of the run may too"
            else:
                break
    if not fits:
        return MemoryTrace(why_not=why_not)
    first = next(iter(fits.values()))  # later ones also hold what earlier ones left behind
    return MemoryTrace(
        classes={micro_batch: fit.memory.peak for micro_batch, fit in fits.items()},
        sizes=first.memory.sizes,
        held_gib=first.held_gib,
    )


def _trace_steps(spec: RunSpec, *, is_fake: bool) -> "_TracedFit":
    """A few steps of a run, and what memory they took."""
    fit = _TracedFit(is_fake=is_fake)
    try:
        train_short_run(spec, fit)
    except _LastStepDone:
        return fit
    msg = "training ended before the traced steps"
    raise RuntimeError(msg)


class _LastStepDone(Exception):
    """The last traced step is over."""


class _StopAfterLastStep(Callback):
    """Ends training at an epoch's last micro-batch, when everything has been allocated once."""

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        """End training after the epoch's last step."""
        if trainer.is_last_batch:
            raise _LastStepDone


class _TracedFit:
    """Calls `Trainer.fit` on one micro-batch again and again, and counts the memory.

    Attributes:
        held_gib: what the process held besides its tensors [GiB].
        memory: of the tensors.
    """

    memory: TensorMemory

    def __init__(self, *, is_fake: bool) -> None:
        self._is_fake, self.held_gib = is_fake, 0.0

    def __call__(
        self, trainer: pl.Trainer, module: pl.LightningModule, loaders: dict[str, Any]
    ) -> None:
        check_accumulation(trainer, module)
        data = loaders.get("datamodule")
        module.configure_model()
        if data:
            data.prepare_data()
            data.setup("fit")
        loader = data.train_dataloader() if data else loaders["train_dataloaders"]
        num, batch = len(loader), next(iter(loader))
        tensors = [*module.parameters(), *module.buffers(), *tree_leaves(batch)]
        size = sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))
        self.held_gib = peak_of_process_gib() - size / _GIB
        with ExitStack() as modes:
            if self._is_fake:
                mode = _make_fake(module)
                batch = _map_tensors(mode.from_tensor, batch)
                modes.enter_context(mode)
                modes.enter_context(FakeAnswers())
            self.memory = TensorMemory(module)
            repeated = _RepeatedBatch(batch, num, self.memory.begin)
            if data:

                def give_repeated(_: Any) -> _RepeatedBatch:
                    return repeated

                for name in ("prepare_data", "setup"):
                    run_class(data).wrap(name, _do_nothing)
                run_class(data).wrap("train_dataloader", give_repeated)
                loaders = {"datamodule": data}
            else:
                loaders = {"train_dataloaders": repeated}
            trainer.limit_val_batches = 0
            callbacks: list[Callback] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
            callbacks.append(_StopAfterLastStep())
            modes.enter_context(self.memory)
            trainer.fit(module, **loaders)


class _RepeatedBatch:
    """One micro-batch again and again, each time in newly allocated memory."""

    def __init__(self, batch: Any, num: int, begin: Callable[[], None]) -> None:
        self._batch, self._num, self._begin = batch, num, begin

    def __len__(self) -> int:
        return self._num

    def __iter__(self) -> Iterator[Any]:
        self._begin()
        for _ in range(self._num):
            yield _map_tensors(Tensor.clone, self._batch)


def _make_fake(module: pl.LightningModule) -> Any:
    """Make a module's tensors fake, in place; later conversions of it change nothing."""

    def keep_module(*_: Any, **__: Any) -> pl.LightningModule:
        return module

    mode = fake_tensor_mode()
    make_fake(module, mode)
    for conversion in ("to", "double", "cpu"):
        run_class(module).wrap(conversion, keep_module)
    return mode


def _do_nothing(*_: Any, **__: Any) -> None:
    """Stands for hooks of data that are set up already."""


def _map_tensors(function: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """A batch with a function applied to each of its tensors."""

    def map_leaf(leaf: Any) -> Any:
        return function(leaf) if isinstance(leaf, Tensor) else leaf

    return tree_map(map_leaf, batch)
