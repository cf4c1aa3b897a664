"""Every private name and message text of another library that the product relies on.

The names are reached in one room, sweeper/upstream. Each has a test in test_private_reaches.py
that fails once the library renames it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Something that a library may change without notice.

    Attributes:
        library: whose it is.
        name: `module:attribute` of a name; otherwise the text itself.
        used_in: our file.
        mark: what our file spells of it, if not the last part of the name.
        why: what it is needed for.
    """

    library: str
    name: str
    used_in: str
    why: str
    mark: str | None = None

    @property
    def spelled(self) -> str:
        return self.mark or self.name.rpartition(":")[2].rpartition(".")[2]


NAMES = (
    Reach(
        library="Hydra",
        name="hydra._internal.core_plugins.file_config_source:FileConfigSource",
        used_in="sweeper/upstream/hydras.py",
        why="a user's config folder comes before ours, but for its primary configs",
    ),
    Reach(
        library="Lightning",
        name="pytorch_lightning.core.optimizer:_init_optimizers_and_lr_schedulers",
        used_in="sweeper/upstream/lightnings.py",
        why="the rates of a module are compared on several layouts, without training",
    ),
    Reach(
        library="Lightning",
        name="pytorch_lightning.loops.fit_loop:_FitLoop.setup_data",
        used_in="sweeper/upstream/lightnings.py",
        why="a module may ask for the number of steps while it sees the counts of a plain Trainer",
    ),
    Reach(
        library="Lightning",
        name="pytorch_lightning.loops.training_epoch_loop:_TrainingEpochLoop.on_advance_end",
        used_in="sweeper/upstream/lightnings.py",
        why="a run is saved after a step and its validation, which no public hook comes after",
    ),
    Reach(
        library="torch",
        name="torch.distributed:get_world_size",
        used_in="sweeper/upstream/torchs.py",
        why="whether a module makes its rates from the number of processes",
    ),
    Reach(
        library="Lightning",
        name="pytorch_lightning.loops.training_epoch_loop:_TrainingEpochLoop._broadcast_sigterm_tensor",
        used_in="sweeper/upstream/lightnings.py",
        why="ranks exchange it before every micro-batch; the launcher handles SIGTERM instead",
    ),
    Reach(
        library="Lightning",
        name="pytorch_lightning.trainer.connectors.logger_connector.result:_ResultCollection._forked_name",
        used_in="sweeper/upstream/lightnings.py",
        why="the names under which callbacks find a logged value",
    ),
    Reach(
        library="Lightning",
        name="pytorch_lightning.plugins.precision:Precision._after_closure",
        used_in="sweeper/upstream/lightnings.py",
        why="the last that is done before a step, after hooks that may set rates",
    ),
    Reach(
        library="torch",
        name="torch.nn.parallel:DistributedDataParallel._set_params_and_buffers_to_ignore_for_model",
        used_in="sweeper/upstream/torchs.py",
        why="DDP sends rank 0's buffers to the others, but for ghost BatchNorm's",
    ),
    Reach(
        library="torch",
        name="torch:_C._current_graph_task_id",
        used_in="sweeper/upstream/torchs.py",
        why="activation checkpointing repeats forward passes in a backward pass",
    ),
    Reach(
        library="torch",
        name="torch._subclasses.fake_tensor:FakeTensorMode",
        used_in="sweeper/upstream/torchs.py",
        why="memory is predicted with tensors that have shapes and no values",
    ),
    Reach(
        library="torch",
        name="torch:ops.aten._local_scalar_dense.default",
        used_in="sweeper/upstream/torchs.py",
        mark="_local_scalar_dense",
        why="a value that is asked of a fake tensor",
    ),
    Reach(
        library="torch",
        name="torch.utils._python_dispatch:TorchDispatchMode",
        used_in="sweeper/upstream/torchs.py",
        why="counts the storages that operations make",
    ),
    Reach(
        library="torch",
        name="torch.utils._pytree:tree_map_only",
        used_in="sweeper/upstream/torchs.py",
        why="the tensors of a batch of any form",
    ),
    Reach(
        library="torch",
        name="torch.nn:LazyBatchNorm1d.cls_to_become",
        used_in="sweeper/upstream/torchs.py",
        why="a lazy BatchNorm has no statistics yet",
    ),
    Reach(
        library="Python",
        name="multiprocessing.forkserver:ensure_running",
        used_in="sweeper/upstream/others.py",
        why="the server must start while signals are ignored",
    ),
    Reach(
        library="Optuna",
        name="optuna:Trial.__init__",
        used_in="sweeper/upstream/others.py",
        mark="optuna.Trial(study, trial_id)",
        why="a trial that an earlier command began goes on under its number",
    ),
    Reach(
        library="Hydra",
        name="hydra.core.config_loader:ConfigLoader.load_configuration",
        used_in="sweeper/upstream/hydras.py",
        why="composes once for each choice of groups, not once for each run",
    ),
    Reach(
        library="Hydra",
        name="hydra.core.config_loader:ConfigLoader.get_sources",
        used_in="sweeper/upstream/hydras.py",
        why="tells the choice of a group from a value",
    ),
    Reach(
        library="Hydra",
        name="hydra.core.override_parser.overrides_parser:OverridesParser.create",
        used_in="sweeper/upstream/hydras.py",
        why="Hydra's own grammar for grids and for what is tuned",
    ),
    Reach(
        library="Hydra",
        name="hydra.core.global_hydra:GlobalHydra.config_loader",
        used_in="sweeper/upstream/hydras.py",
        why="the configs that Hydra reads in this process",
    ),
    Reach(
        library="Hydra",
        name="hydra.core.plugins:Plugins.instantiate_launcher",
        used_in="sweeper/upstream/hydras.py",
        why="as in Hydra's example plugins; there is no public way",
    ),
    Reach(
        library="timm",
        name="timm.layers:DropPath",
        used_in="lightning_modules/layers/keyed_dropout.py",
        why="recognised by its name, since timm is optional",
    ),
)

#: Properties, and what objects keep of themselves.
ATTRIBUTES = (
    Reach(
        library="Lightning",
        name="pytorch_lightning:Trainer._results",
        used_in="sweeper/upstream/lightnings.py",
        why="what was logged on this rank, which is merged over ranks and saved within an epoch",
    ),
    Reach(
        library="torchmetrics",
        name="torchmetrics:Metric._computed",
        used_in="sweeper/upstream/lightnings.py",
        why="where Lightning looks for the value of an epoch",
    ),
    Reach(
        library="Lightning",
        name="pytorch_lightning.loops.training_epoch_loop:_TrainingEpochLoop._results",
        used_in="sweeper/upstream/lightnings.py",
        why="metrics that Lightning resets as an epoch begins",
    ),
    Reach(
        library="Lightning",
        name="pytorch_lightning.loops.evaluation_loop:_EvaluationLoop._results",
        used_in="sweeper/upstream/lightnings.py",
        why="metrics that Lightning resets as validation begins",
    ),
    Reach(
        library="Lightning",
        name="pytorch_lightning.trainer.connectors.logger_connector.result:_ResultMetric.cumulated_batch_size",
        used_in="sweeper/upstream/lightnings.py",
        why="the examples behind a mean, which a resumed epoch adds to",
    ),
    Reach(
        library="Lightning",
        name="pytorch_lightning.trainer.connectors.logger_connector.result:_ResultMetric.has_reset",
        used_in="sweeper/upstream/lightnings.py",
        why="a value that was reset is no value of this epoch",
    ),
    Reach(
        library="Lightning",
        name="pytorch_lightning.loops.training_epoch_loop:_TrainingEpochLoop.val_check_batch",
        used_in="sweeper/upstream/lightnings.py",
        why="a run is validated after the steps that its plan says; its epochs may get longer",
    ),
    Reach(
        library="Lightning",
        name="pytorch_lightning.loops.training_epoch_loop:_TrainingEpochLoop._batches_that_stepped",
        used_in="sweeper/upstream/lightnings.py",
        why="Lightning counts the step that a run was saved after again when it resumes",
    ),
    Reach(
        library="torch",
        name="torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook:PowerSGDState.error_dict",
        used_in="sweeper/upstream/torchs.py",
        why="errors are saved with a checkpoint",
    ),
    Reach(
        library="torch",
        name="torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook:PowerSGDState.p_memory_dict",
        used_in="sweeper/upstream/torchs.py",
        why="factors are saved with a checkpoint",
    ),
    Reach(
        library="torch",
        name="torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook:PowerSGDState.q_memory_dict",
        used_in="sweeper/upstream/torchs.py",
        why="factors are saved with a checkpoint",
    ),
)

#: Where attributes are set on objects that are not ours outside of the room, and why.
ELSEWHERE = {
    "lightning_modules/run_class.py": "the class of a user's module or data is changed here, once",
    "lightning_modules/layers/run_layer.py": "the class of a layer is changed here",
    "lightning_modules/models/library.py": "a model that was just built gets another first layer",
    "sweeper/console/printing.py": "the streams of this process",
    "sweeper/spec/config.py": "copies of our own frozen config",
    "sweeper/spec/run_spec.py": "copies of our own frozen spec",
}

HYDRA_TEXTS = (
    Reach(
        library="Hydra",
        name="Could not override '",
        used_in="sweeper/commands/refusals.py",
        mark="Could not override '",
        why="an unknown key gets a sentence of ours",
    ),
    Reach(
        library="Hydra",
        name="Could not find '",
        used_in="sweeper/commands/refusals.py",
        mark="Could not find '",
        why="an unknown choice gets a sentence of ours",
    ),
    Reach(
        library="Hydra",
        name="Available options in",
        used_in="sweeper/commands/refusals.py",
        mark="Available options in",
        why="the sentence lists the choices",
    ),
    *(
        Reach(
            library="Hydra",
            name=text,
            used_in="sweeper/commands/refusals.py",
            mark=text,
            why="a key with several values where one belongs gets a sentence of ours",
        )
        for text in (
            "Ambiguous value for argument",
            "Sweep parameters",
            "An item is already at '",
            "Multiple values for ",
        )
    ),
)

ALLOCATOR_TEXT = Reach(
    library="torch",
    name="DefaultCPUAllocator",
    used_in="lightning_modules/process/device.py",
    why="out of memory on a CPU is a RuntimeError with this text",
)

AUTOGRAD_TEXT = Reach(
    library="torch",
    name="ToCopyBackward0",
    used_in="sweeper/upstream/torchs.py",
    why="a module that converts numbers to float32 is judged by float32's rounding",
)

LOADER_TEXT = Reach(
    library="torch",
    name="DataLoader worker (pid",
    used_in="sweeper/launch/ranks.py",
    why="a data worker that was killed is a RuntimeError with this text",
)

#: What slurmstepd writes into a log.
SLURM_NOTES = ("CANCELLED AT", "DUE TO")
SLURM_NOTES_IN = "sweeper/launch/slurm/commands.py"
