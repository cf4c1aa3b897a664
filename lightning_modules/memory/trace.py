"""The memory of a few steps by class, with fake tensors, which compute nothing, if possible."""

import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import chain, product
from typing import Any, Self
from unittest.mock import patch

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from lightning_modules.callbacks.checkpoint import RunCheckpoint
from lightning_modules.callbacks.epoch_means import Evaluation
from lightning_modules.memory.short_run import least_micro_batch, train_short_run, wanted_steps
from lightning_modules.optimizers.sharded_strategy import ShardedStrategy
from lightning_modules.process.device import peak_of_process_gib
from lightning_modules.process.shards import call_with_leaves, shard
from lightning_modules.run_class import do_nothing, run_class
from sweeper.spec.config import RunConfig
from sweeper.spec.run_memory import (
    ACTIVATIONS,
    CLASSES,
    GRADIENTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    TEMPORARIES,
    MemoryTrace,
)
from sweeper.spec.run_spec import run_spec
from sweeper.spec.spans import gradient_span
from sweeper.upstream.torchs import (
    FakeAnswers,
    TorchDispatchMode,
    fake_tensor_mode,
    is_in_backward,
    make_fake,
    tree_leaves,
    tree_map_only,
)


def memory_trace(config: RunConfig) -> MemoryTrace:
    """What the memory of a run consists of, for any micro-batch.

    Two micro-batches are traced, or the single size that a method prescribes.
    """
    if config.batch_unit:
        return MemoryTrace(why_not="micro-batches in tokens have different numbers of examples")
    torch.set_num_threads(config.threads)
    spec, why_not = run_spec(config), "training ended before the traced steps"
    least = least_micro_batch(spec.bn_span)
    num = config.data.num_train_examples
    sizes = [size for size in (least, 2 * least) if size == least <= num or 2 * size <= num]
    if gradient_span(config) is not None or config.bn_span == "micro":
        sizes = [spec.split.micro_batch]
    fits: dict[int, _TracedFit] = {}
    for micro_batch, is_fake in product(sizes, (True, False)):
        if micro_batch in fits:
            continue
        fit = _TracedFit(is_fake=is_fake, steps=wanted_steps(config))
        try:
            train_short_run(config, micro_batch, fit)
        except _LastStepDone:
            fits[micro_batch] = fit
        except Exception as error:  # noqa: BLE001  whatever the module does with fake tensors
            traceback.print_exc()
            error_text = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
            why_not = f"first steps on a CPU raised {error_text}, and those of the run may too"
    if not fits:
        return MemoryTrace(why_not=why_not)
    first = next(iter(fits.values()))  # later fits also hold what earlier fits left behind
    return MemoryTrace(
        classes={micro_batch: fit.memory.peak for micro_batch, fit in fits.items()},
        sizes=first.memory.sizes,
        held_gib=first.held_gib,
    )


class _LastStepDone(Exception):
    """The last traced step is over."""


class _TracedFit(Callback):
    """Calls `Trainer.fit` on a micro-batch again and again, and counts the memory.

    Training ends at an epoch's last micro-batch, when everything has been allocated once.
    """

    memory: "TensorMemory"  # of the tensors

    def __init__(self, *, is_fake: bool, steps: int) -> None:
        self._is_fake, self._steps = is_fake, steps
        self.held_gib = 0.0  # what the process held besides its tensors

    def __call__(
        self, trainer: pl.Trainer, module: pl.LightningModule, loaders: dict[str, Any]
    ) -> None:
        data = loaders.get("datamodule")
        module.configure_model()
        if data:
            data.prepare_data()
            data.setup("fit")
        loader = data.train_dataloader() if data else loaders["train_dataloaders"]
        batch, num = next(iter(loader)), self._steps * trainer.accumulate_grad_batches
        size = sum(t.nbytes for t in chain(module.parameters(), module.buffers()))
        size += sum(leaf.nbytes for leaf in tree_leaves(batch) if isinstance(leaf, Tensor))
        self.held_gib = peak_of_process_gib() - size / 2**30
        with ExitStack() as modes:
            if isinstance(trainer.strategy, ShardedStrategy):
                trainer.strategy.make_mesh()
            if self._is_fake:
                mode = fake_tensor_mode()
                make_fake(module, mode)
                for conversion in ("to", "double", "cpu"):  # fake tensors refuse them
                    run_class(module).wrap(conversion, lambda *_, **__: module)
                batch = tree_map_only(Tensor, mode.from_tensor, batch)
                modes.enter_context(mode)
                modes.enter_context(FakeAnswers())
            self.memory = TensorMemory(module)
            repeated = _RepeatedBatch(batch, num, self.memory.begin)
            if data:
                for name in ("prepare_data", "setup"):  # the data are set up already
                    run_class(data).wrap(name, do_nothing)
                run_class(data).wrap("train_dataloader", lambda *_, **__: repeated)
                loaders = {"datamodule": data}
            else:
                loaders = {"train_dataloaders": repeated}
            trainer.limit_val_batches = 0
            callbacks: list[Callback] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
            # The plan of a small data set has an evaluation before the last traced step; ranks that
            # do not exist seem to ask for a checkpoint.
            kept = (each for each in callbacks if not isinstance(each, Evaluation | RunCheckpoint))
            callbacks[:] = kept
            callbacks.append(self)
            modes.enter_context(self.memory)
            trainer.fit(module, **loaders)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        """End training after the epoch's last step."""
        if trainer.is_last_batch:
            raise _LastStepDone


class _RepeatedBatch:
    """A micro-batch again and again, each time in newly allocated memory."""

    def __init__(self, batch: Any, num: int, begin: Callable[[], None]) -> None:
        self._batch, self._num, self._begin = batch, num, begin

    def __len__(self) -> int:
        return self._num

    def __iter__(self) -> Iterator[Any]:
        self._begin()
        for _ in range(self._num):
            yield tree_map_only(Tensor, Tensor.clone, self._batch)


class TensorMemory(TorchDispatchMode):
    """Counts the storages that are alive while it is entered, and records their peak.

    Tensors made by a forward pass with gradients enabled are activations; those made by the
    backward pass and the optimizer are temporaries. A parameter's ``.grad`` is a gradient. What
    outlives a step is optimizer state, even if a callback keeps it, such as an average of the
    weights. torch's own MemTracker, on which this is modelled, refuses a module that is called
    twice, as in accumulation. The module's parameters and buffers are there from the start.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        # Bytes by class at the moment of the largest total, after the first step, in which the
        # optimizer's state is made; sizes of activations and temporaries then, and how many.
        self.peak, self.sizes = dict.fromkeys(CLASSES, 0), Counter[int]()
        self._now = dict.fromkeys(CLASSES, 0)
        self._living: dict[int, tuple[str, int]] = {}  # class and bytes, by id of a storage
        self._module, self._was_in_backward = module, False
        self._is_first_step = True
        self._leaves: list[nn.Parameter] = []  # that gradients are of: whole ones of shards
        self._add([*module.parameters(), *module.buffers()], PARAMETERS)

    def __enter__(self) -> Self:
        self._hook = register_optimizer_step_post_hook(self._after_step)
        self._patch = patch.object(torch.UntypedStorage, "resize_", _make_resize(self._resize))
        self._patch.start()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._hook.remove()
        self._patch.stop()
        super().__exit__(*raised)

    def begin(self) -> None:
        """Training begins: what is alive by now, other than parameters, will outlive it."""
        for parameter in self._module.parameters():  # shards were made after all else
            self._move(id(shard(parameter).untyped_storage()), PARAMETERS)
        self._keep({ACTIVATIONS, TEMPORARIES})
        call_with_leaves(self._module, lambda _, leaf: self._leaves.append(leaf))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:  # its shards come here on their own
            return NotImplemented
        in_backward = is_in_backward()
        if self._was_in_backward and not in_backward:
            for parameter in (*self._module.parameters(), *self._leaves):
                if parameter.grad is not None and parameter.grad.layout == torch.strided:
                    self._move(id(shard(parameter.grad).untyped_storage()), GRADIENTS)
        self._was_in_backward = in_backward
        outputs = func(*args, **(kwargs or {}))
        is_activation = torch.is_grad_enabled() and not in_backward
        self._add(tree_leaves(outputs), ACTIVATIONS if is_activation else TEMPORARIES)
        return outputs

    def _after_step(self, *_: Any) -> None:
        self._keep({TEMPORARIES})
        if self._is_first_step:
            self._is_first_step = False
            self._record_peak()

    def _add(self, tensors: Iterable[Any], kind: str) -> None:
        for tensor in tensors:
            if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
                storage = tensor.untyped_storage()
                if id(storage) not in self._living:
                    self._living[id(storage)] = (kind, storage.nbytes())
                    self._now[kind] += storage.nbytes()
                    weakref.finalize(storage, self._move, id(storage), None)
                    if sum(self._now.values()) >= sum(self.peak.values()):
                        self._record_peak()

    def _resize(self, storage: int, size: int) -> None:
        """FSDP gathers parameters into storages that it frees by making them empty."""
        if storage in self._living:
            self._move(storage, PARAMETERS)
            self._now[PARAMETERS] += size - self._living[storage][1]
            self._living[storage] = (PARAMETERS, size)
            if sum(self._now.values()) >= sum(self.peak.values()):
                self._record_peak()

    def _record_peak(self) -> None:
        self.peak = dict(self._now)
        passing = {ACTIVATIONS, TEMPORARIES}
        self.sizes = Counter(size for kind, size in self._living.values() if kind in passing)

    def _keep(self, kinds: set[str]) -> None:
        """What is alive of these classes outlives a step: it is optimizer state."""
        for storage, (kind, _) in list(self._living.items()):
            if kind in kinds:
                self._move(storage, OPTIMIZER_STATE)

    def _move(self, storage: int, kind: str | None) -> None:
        """Count a storage in another class, or in none once it is freed."""
        if storage in self._living:
            before, size = self._living.pop(storage)
            self._now[before] -= size
            if kind is not None:
                self._living[storage] = (kind, size)
                self._now[kind] += size


def _make_resize(call: Callable[[int, int], None]) -> Callable[..., Any]:
    own = torch.UntypedStorage.resize_

    def resize(storage: torch.UntypedStorage, size: int) -> Any:
        call(id(storage), size)
        return own(storage, size)

    return resize
