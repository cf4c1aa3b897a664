"""The memory of a few steps by class, with fake tensors, which compute nothing, if possible."""

import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from lightning_modules.memory.tensors import TensorMemory
from lightning_modules.process.memory import peak_of_process_gib
from lightning_modules.run_class import run_class
from lightning_modules.train import RankContext, train
from sweeper.spec.config import RunConfig
from sweeper.spec.method_checks import gradient_span
from sweeper.spec.run_memory import MemoryTrace
from sweeper.spec.run_spec import RunSpec, run_spec
from sweeper.spec.worker_args import CHECKPOINT

# Optimizer state is allocated at the first step and coexists with the activations at the second;
# PowerSGD's buffers are made at the third. During a step's second micro-batch the gradients of the
# first are alive.
_STEPS, _STEPS_OF_POWERSGD, _ACCUMULATION_STEPS = 2, 3, 2
_LEAST_MICRO_BATCH = 4
_GIB = 2**30
_Found = TypeVar("_Found")


def memory_trace(config: RunConfig) -> MemoryTrace:
    """What the memory of a run consists of, for any micro-batch."""
    torch.set_num_threads(config.threads)
    found: dict[int, _TracedFit] = {}
    why = ""
    for micro_batch in _micro_batches(config):
        for is_fake in (True, False):
            try:
                traced = partial(_traced, is_fake=is_fake)
                found[micro_batch] = briefly(config, micro_batch, traced)
            except Exception as error:  # noqa: BLE001  whatever the module does with fake tensors
                traceback.print_exc()
                raised = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
                why = f"first steps on a CPU raised {raised}, and those of the run may too"
            else:
                break
    if not found:
        return MemoryTrace(why_not=why)
    first = next(iter(found.values()))  # later ones also hold what earlier ones left behind
    return MemoryTrace(
        classes={micro_batch: fit.memory.peak for micro_batch, fit in found.items()},
        sizes=first.memory.sizes,
        held_gib=first.held_gib,
    )


def _micro_batches(config: RunConfig) -> list[int]:
    """Two micro-batches to trace, or the one that a method prescribes [examples]."""
    spec = run_spec(config)
    if gradient_span(config) is not None or config.bn_span == "micro":
        return [spec.split.micro_batch]
    least = spec.bn_span * -(-_LEAST_MICRO_BATCH // spec.bn_span)
    return [size for size in (least, 2 * least) if size <= config.data.num_train_examples]


class StepsByHand(Exception):
    """A module that takes its steps by itself was to accumulate gradients."""


def check_accumulation(trainer: pl.Trainer, module: pl.LightningModule) -> None:
    """Refuse to accumulate gradients for a module that takes its steps by itself.

    Raises:
        StepsByHand: if that was asked for.
    """
    if trainer.accumulate_grad_batches > 1 and not module.automatic_optimization:
        raise StepsByHand


def briefly(config: RunConfig, micro_batch: int, do: Callable[[RunSpec], _Found]) -> _Found:
    """What a function finds for a run of a few steps, which accumulate gradients if they can.

    Args:
        config: of the run.
        micro_batch: to train it in [examples].
        do: called with the short run; it calls `check_accumulation` before it trains.
    """
    try:
        return do(brief(config, micro_batch))
    except StepsByHand:
        return do(brief(config, micro_batch, accumulation_steps=1))


def brief(
    config: RunConfig, micro_batch: int, *, accumulation_steps: int = _ACCUMULATION_STEPS
) -> RunSpec:
    """One rank's part of a run for a few steps, in micro-batches of a given size.

    It has all that takes memory: the data set, accumulated gradients (whether or not this run
    accumulates: others of its kind may), the optimizer's state. 16-mixed is traced as bf16-mixed,
    whose sizes are the same, since the loss scaler reads values.
    """
    examples = config.data.num_train_examples
    batch = micro_batch * min(accumulation_steps, examples // micro_batch)
    wanted = _STEPS_OF_POWERSGD if config.comm_hook.name == "powersgd" else _STEPS
    steps = min(wanted, examples // batch)
    resolved = config.resolved
    spec = run_spec(
        config.replaced(
            accelerator="cpu",
            precision={"16-mixed": "bf16-mixed"}.get(config.precision, config.precision),
            batch=batch,
            micro_batch=micro_batch,
            devices=1,
            num_nodes=1,
            epochs=1,
            warmup=0,
            lr_rule={"name": "none"},
            schedule={"name": "constant"},
            logger={"_target_": None},
            loss_ceiling=None,
            data={**resolved["data"], **_without_processes(config)},
            comm_hook=_from_the_start(resolved["comm_hook"]),
        )
    )
    short = replace(spec.batch_plan, num_train_examples=steps * batch)
    return replace(spec, batch_plan=short)


def _without_processes(config: RunConfig) -> dict[str, int]:
    return {"num_workers": 0} if "num_workers" in config.data.settings else {}


def _from_the_start(comm_hook: Mapping[str, Any]) -> dict[str, Any]:
    """The communication hook for one rank, without the steps of plain all-reduce at its start."""
    if comm_hook["name"] == "hierarchical":
        return {"name": "all_reduce", "nccl_algo": None}
    sooner = {"start_step": 2, "start_epoch": 1, "workers": 1}
    return {key: sooner.get(key, value) for key, value in comm_hook.items()}


def only_rank(folder: Path, fit: Callable[..., None]) -> RankContext:
    """The only rank of a short run, which leaves its files in this folder."""
    return RankContext(
        rank=0,
        folder=folder,
        checkpoint=folder / CHECKPOINT,
        on_epoch=lambda rows: None,
        fit=fit,
    )


def _traced(spec: RunSpec, *, is_fake: bool) -> "_TracedFit":
    """A few steps of a run, and what memory they took."""
    fit = _TracedFit(is_fake=is_fake)
    with tempfile.TemporaryDirectory() as folder:
        context = only_rank(Path(folder), fit)
        try:
            train(spec, context)
        except _Enough:
            return fit
    msg = "training ended before the traced steps"
    raise RuntimeError(msg)


class _Enough(Exception):
    """The last traced step is over."""


class _Last(Callback):
    """Ends training at an epoch's last micro-batch, when everything has been allocated once."""

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        """End training after the epoch's last step."""
        if trainer.is_last_batch:
            raise _Enough


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
        size = sum(one.nbytes for one in tensors if isinstance(one, Tensor))
        self.held_gib = peak_of_process_gib() - size / _GIB
        with ExitStack() as modes:
            if self._is_fake:
                mode = _fake(module)
                batch = _mapped(mode.from_tensor, batch)
                for one in (mode, _Answers()):
                    modes.enter_context(one)
            self.memory = TensorMemory(module)
            again = _Batches(batch, num, self.memory.begin)
            if data:
                for name in ("prepare_data", "setup"):
                    run_class(data).wrap(name, lambda own, *args, **kwargs: None)
                run_class(data).wrap("train_dataloader", lambda own: again)
            trainer.limit_val_batches = 0
            callbacks: list[Callback] = vars(trainer)["callbacks"]
            callbacks.append(_Last())
            modes.enter_context(self.memory)
            taken: dict[str, Any] = {"datamodule": data} if data else {"train_dataloaders": again}
            trainer.fit(module, **taken)


class _Batches:
    """One micro-batch again and again, each time in newly allocated memory."""

    def __init__(self, batch: Any, num: int, begin: Callable[[], None]) -> None:
        self._batch, self._num, self._begin = batch, num, begin

    def __len__(self) -> int:
        return self._num

    def __iter__(self) -> Iterator[Any]:
        self._begin()
        for _ in range(self._num):
            yield _mapped(Tensor.clone, self._batch)


class _Answers(TorchDispatchMode):
    """Answers what fake tensors cannot: any value asked for is 1, and tensors are equal."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.ops.aten.equal.default:
            return True
        if func is torch.ops.aten._local_scalar_dense.default:
            kind = args[0].dtype
            return True if kind is torch.bool else 1.0 if kind.is_floating_point else 1
        return func(*args, **(kwargs or {}))


def _fake(module: pl.LightningModule) -> Any:
    """Make a module's tensors fake, in place; later conversions of it change nothing."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # here, to spare runs its memory

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    for layer in module.modules():
        for named in (layer.named_parameters, layer.named_buffers):
            for name, tensor in list(named(recurse=False, remove_duplicate=False)):
                setattr(layer, name, mode.from_tensor(tensor))
    for conversion in ("to", "double", "cpu"):
        run_class(module).wrap(conversion, lambda own, *args, **kwargs: module)
    return mode


def _mapped(function: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """A batch with a function applied to each of its tensors."""

    def of(leaf: Any) -> Any:
        return function(leaf) if isinstance(leaf, Tensor) else leaf

    return tree_map(of, batch)
