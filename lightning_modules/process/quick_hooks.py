"""Lightning's calls of hooks, without what surrounds them when nothing is profiled.

Lightning calls some twenty hooks at each micro-batch, of which most are empty. For each it words a
line of the log, enters a context of the profiler and tells the module the hook's name through
`nn.Module.__setattr__`, which takes longer than what most hooks do.
"""

# pyright: reportPrivateUsage=false

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.strategies import Strategy
from pytorch_lightning.trainer import call

from lightning_modules.callbacks.steps import NoProfiler

_NAME = "_current_fx_name"  # private: Lightning LightningModule._current_fx_name
_EMPTY = {
    getattr(pl.LightningModule, name)
    for name in (
        "on_train_batch_start",
        "on_before_backward",
        "on_after_backward",
        "on_before_optimizer_step",
        "on_before_zero_grad",
        "on_train_batch_end",
        "on_validation_batch_start",
        "on_validation_batch_end",
    )
} | {Strategy.on_train_batch_start}
# private: Lightning's trainer.call
_of_callbacks: Any = getattr(call, "_call_callback_hooks", None)
_of_module: Any = getattr(call, "_call_lightning_module_hook", None)
_of_strategy: Any = getattr(call, "_call_strategy_hook", None)


def call_hooks_quickly() -> None:
    """Have the hooks of Trainers with `NoProfiler` called so; other Trainers are left as they are.

    The same hooks are called, in the same order, with the same arguments, and the module knows
    which one it is in; only those that Lightning's own classes leave empty are passed over.
    Of another Lightning, which has no such functions, nothing is replaced.
    """
    if None in (_of_callbacks, _of_module, _of_strategy):
        return
    call._call_callback_hooks = _call_callback_hooks
    call._call_lightning_module_hook = _call_lightning_module_hook
    call._call_strategy_hook = _call_strategy_hook


def _call_callback_hooks(
    trainer: pl.Trainer,
    hook_name: str,
    *args: Any,
    monitoring_callbacks: bool | None = None,
    **kwargs: Any,
) -> None:
    module: Any = trainer.lightning_module
    if monitoring_callbacks is not None or module is None or _is_profiled(trainer):
        some = monitoring_callbacks
        _of_callbacks(trainer, hook_name, *args, monitoring_callbacks=some, **kwargs)
        return
    before = getattr(module, _NAME)
    object.__setattr__(module, _NAME, hook_name)
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        hook = getattr(callback, hook_name)
        if callable(hook):
            hook(trainer, module, *args, **kwargs)
    object.__setattr__(module, _NAME, before)


def _call_lightning_module_hook(
    trainer: pl.Trainer,
    hook_name: str,
    *args: Any,
    pl_module: pl.LightningModule | None = None,
    **kwargs: Any,
) -> Any:
    module: Any = pl_module or trainer.lightning_module
    if module is None or _is_profiled(trainer):
        return _of_module(trainer, hook_name, *args, pl_module=pl_module, **kwargs)
    return _named(module, hook_name, getattr(module, hook_name), *args, **kwargs)


def _call_strategy_hook(trainer: pl.Trainer, hook_name: str, *args: Any, **kwargs: Any) -> Any:
    module: Any = trainer.lightning_module
    if module is None or _is_profiled(trainer):
        return _of_strategy(trainer, hook_name, *args, **kwargs)
    return _named(module, hook_name, getattr(trainer.strategy, hook_name), *args, **kwargs)


def _is_profiled(trainer: pl.Trainer) -> bool:
    return type(trainer.profiler) is not NoProfiler  # type: ignore[attr-defined]


def _named(module: Any, hook_name: str, hook: Any, *args: Any, **kwargs: Any) -> Any:
    """What a hook returns that knows its name; None for one that is empty or cannot be called."""
    if getattr(hook, "__func__", None) in _EMPTY or not callable(hook):
        return None
    before = getattr(module, _NAME)
    object.__setattr__(module, _NAME, hook_name)
    output = hook(*args, **kwargs)
    object.__setattr__(module, _NAME, before)
    return output
