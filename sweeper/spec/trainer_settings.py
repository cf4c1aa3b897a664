"""Settings of Lightning's Trainer: those passed through, and those that only the run may set."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from sweeper.spec.sentences import format_value
from sweeper.spec.values import Rule, Settings

#: Trainer settings that the run decides: the config key to set instead, or why there is none.
OWNED_BY_RUN = {
    "accelerator": "accelerator",
    "accumulate_grad_batches": "micro_batch, which determines it",
    "barebones": "nothing: runs need the callbacks that it disables",
    "check_val_every_n_epoch": "evaluate_every, a number of examples",
    "default_root_dir": "results",
    "deterministic": "reproducible",
    "devices": "devices",
    "enable_checkpointing": "keep_checkpoint",
    "fast_dev_run": "epochs and data.num_train_examples",
    "limit_train_batches": "data.num_train_examples",
    "logger": "logger",
    "max_epochs": "epochs",
    "max_steps": "steps",
    "max_time": "timeout_s",
    "min_epochs": "epochs",
    "min_steps": "epochs",
    "num_nodes": "num_nodes",
    "num_sanity_val_steps": "nothing: a run whose validation fails is recorded",
    "overfit_batches": "data.num_train_examples",
    "plugins": "precision",
    "precision": "precision",
    "reload_dataloaders_every_n_epochs": "nothing: the run sets the order of each epoch",
    "strategy": "strategy: ddp, or fsdp for FSDP2",
    "sync_batchnorm": "bn_span",
    "use_distributed_sampler": "nothing: the run sets the order of each epoch",
    "val_check_interval": "evaluate_every",
}


def remedy_of_owned(key: str) -> str:
    """What to set instead of a Trainer setting that the run decides, or why there is nothing."""
    return f"set {OWNED_BY_RUN[key]}".removeprefix("set nothing: ")


#: Of the settings passed through, those that do not change results.
INCIDENTAL_OF_TRAINER = frozenset(
    {"benchmark", "detect_anomaly", "enable_autolog_hparams", "inference_mode"}
    | {"log_every_n_steps", "profiler"}
)
_PASSED = INCIDENTAL_OF_TRAINER.union(
    ("callbacks", "gradient_clip_algorithm", "gradient_clip_val", "limit_val_batches")
)


_LEAVE = "leave the batch and the rate to the run"
#: Callbacks that are refused: what must hold, and what to use instead.
_REFUSED_CALLBACKS = {
    "BatchSizeFinder": (_LEAVE, "batch, and micro_batch=auto"),
    "GradientAccumulationScheduler": (_LEAVE, "schedule=growing_batch"),
    "LearningRateFinder": (_LEAVE, "the rates of a grid, or hydra/sweeper=optuna"),
    "ModelPruning": ("resume with the run", "pruning after training"),
    "StochasticWeightAveraging": (
        "take part in each epoch's evaluation, and resume with the run",
        "ema_decay, or Lightning's EMAWeightAveraging",
    ),
}


#: Lightning's callbacks that only show or save.
_SHOWING = frozenset(
    {"DeviceStatsMonitor", "LearningRateMonitor", "ModelCheckpoint", "ModelSummary"}
    | {"OnExceptionCheckpoint", "ProgressBar", "RichModelSummary", "RichProgressBar"}
    | {"TQDMProgressBar", "ThroughputMonitor"}
)


class TrainerSettings(Settings, extra="allow"):
    """Settings of Lightning's Trainer, under the Trainer's own names.

    Attributes:
        callbacks: groups with a `_target_`, in a list or by name; they are called after the run's
            own callbacks.
    """

    callbacks: Annotated[
        list[dict[str, Any]],
        # Projects with Hydra have a mapping by name instead of a list.
        BeforeValidator(lambda given: [*given.values()] if isinstance(given, Mapping) else given),
        Rule("a list of groups, each with a _target_"),
    ] = Field(default=[])

    @property
    def flags(self) -> dict[str, Any]:
        """All other settings that are given."""
        return self.model_dump(exclude={"callbacks"})


def check_trainer(given: TrainerSettings) -> None:
    """Refuse settings that the run decides, and names that are not passed through.

    ValueError with a line for each setting.
    """
    lines = [
        f"trainer.{key} must be left to the run; got trainer.{key}={format_value(value)}. "
        f"Set {OWNED_BY_RUN[key]}."
        for key, value in given.flags.items()
        if key in OWNED_BY_RUN
    ]
    lines += [
        f"trainer.{key} must be a setting of Lightning's Trainer that is passed through; got "
        f"trainer.{key}={format_value(value)}. These are: {', '.join(sorted(_PASSED))}."
        for key, value in given.flags.items()
        if key not in OWNED_BY_RUN and key not in _PASSED
    ]
    targets = [str(callback.get("_target_")) for callback in given.callbacks]
    why = [
        callback_refusal([target.rpartition(".")[2]], f"_target_={target}") for target in targets
    ]
    if lines := [*lines, *filter(None, why)]:
        raise ValueError("\n".join(lines))


def changing_callbacks(callbacks: Any) -> Any:
    """Callbacks of a config, a list or by name, without those of Lightning that change nothing."""

    def only_shows(callback: Any) -> bool:
        package, _, name = str(callback.get("_target_")).rpartition(".")
        return package.startswith(("lightning.", "pytorch_lightning.")) and name in _SHOWING

    if isinstance(callbacks, Mapping):
        return {name: c for name, c in callbacks.items() if not only_shows(c)}
    return [callback for callback in callbacks if not only_shows(callback)]


def callback_refusal(kinds: Iterable[str], given: str) -> str | None:
    """Why a callback is refused; None if it is not.

    Args:
        kinds: names of its class and base classes.
        given: how the config names it, for the error.
    """
    for kind in _REFUSED_CALLBACKS.keys() & {*kinds}:
        rule, instead = _REFUSED_CALLBACKS[kind]
        return f"trainer.callbacks must {rule}; got {given}. Use {instead}."
    return None
