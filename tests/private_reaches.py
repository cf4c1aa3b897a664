"""Every private name and message text of another library that the product relies on.

The names are reached in one room, sweeper/upstream. Each has a test in test_private_reaches.py
that fails once the library renames it. By our file: what it reaches, and what that is needed for.
"""

#: As `module:attribute`.
NAMES = {
    "sweeper/upstream/hydras.py": {
        "hydra._internal.core_plugins.file_config_source:FileConfigSource":
        "a user's config folder comes before ours, but for its primary configs",
        "hydra.core.config_loader:ConfigLoader.load_configuration":
        "composes once for each choice of groups, not once for each run",
        "hydra.core.config_loader:ConfigLoader.get_sources":
        "tells the choice of a group from a value",
        "hydra.core.override_parser.overrides_parser:OverridesParser.create":
        "Hydra's own grammar for grids and for what is tuned",
        "hydra.core.global_hydra:GlobalHydra.config_loader":
        "the configs that Hydra reads in this process",
        "hydra.core.plugins:Plugins.instantiate_launcher":
        "as in Hydra's example plugins; there is no public way",
    },
    "sweeper/upstream/lightnings.py": {
        "pytorch_lightning.core.optimizer:_init_optimizers_and_lr_schedulers":
        "the rates of a module are compared on several layouts, without training",
        "pytorch_lightning.loops.fit_loop:_FitLoop.setup_data":
        "a module may ask for the number of steps while it sees the counts of a plain Trainer",
        "pytorch_lightning.loops.training_epoch_loop:_TrainingEpochLoop.on_advance_end":
        "a run is saved after a step and its validation, which no public hook comes after",
        "pytorch_lightning.loops.training_epoch_loop:_TrainingEpochLoop._broadcast_sigterm_tensor":
        "ranks exchange it before every micro-batch; the launcher handles SIGTERM instead",
        "pytorch_lightning.trainer.connectors.logger_connector.result:_ResultCollection._forked_name":
        "the names under which callbacks find a logged value",
        "pytorch_lightning.plugins.precision:Precision._after_closure":
        "the last that is done before a step, after hooks that may set rates",
    },
    "sweeper/upstream/torchs.py": {
        "torch.distributed:get_world_size":
        "whether a module makes its rates from the number of processes",
        "torch.nn.parallel:DistributedDataParallel._set_params_and_buffers_to_ignore_for_model":
        "DDP sends rank 0's buffers to the others, but for ghost BatchNorm's",
        "torch:_C._current_graph_task_id":
        "activation checkpointing repeats forward passes in a backward pass",
        "torch:_C._current_autograd_node": "which part of a model is repeated",
        "torch.autograd.graph:Node._sequence_nr": "which part of a model is repeated",
        "torch._dynamo.config:recompile_limit": "blocks that differ in settings are all compiled",
        "torch._subclasses.fake_tensor:FakeTensorMode":
        "memory is predicted with tensors that have shapes and no values",
        "torch:ops.aten._local_scalar_dense.default": "a value that is asked of a fake tensor",
        "torch.utils._python_dispatch:TorchDispatchMode":
        "counts the storages that operations make",
        "torch.utils._pytree:tree_map_only": "the tensors of a batch of any form",
        "torch.nn:LazyBatchNorm1d.cls_to_become": "a lazy BatchNorm has no statistics yet",
    },
    "sweeper/upstream/others.py": {
        "multiprocessing.forkserver:ensure_running":
        "the server must start while signals are ignored",
        "optuna:Trial.__init__": "a trial that an earlier command began goes on under its number",
    },
    "lightning_modules/layers/keyed_dropout.py": {
        "timm.layers:DropPath": "recognised by its name, since timm is optional",
    },
}  # fmt: skip

#: What our file spells of a name, if that is not the name's last part.
MARKS = {
    "torch:ops.aten._local_scalar_dense.default": "_local_scalar_dense",
    "optuna:Trial.__init__": "optuna.Trial(study, trial_id)",
}

#: Properties, and what objects keep of themselves.
ATTRIBUTES = {
    "sweeper/upstream/lightnings.py": {
        "pytorch_lightning:Trainer._results":
        "what was logged on this rank, which is merged over ranks and saved within an epoch",
        "torchmetrics:Metric._computed": "where Lightning looks for the value of an epoch",
        "pytorch_lightning.loops.training_epoch_loop:_TrainingEpochLoop._results":
        "metrics that Lightning resets as an epoch begins",
        "pytorch_lightning.loops.evaluation_loop:_EvaluationLoop._results":
        "metrics that Lightning resets as validation begins",
        "pytorch_lightning.trainer.connectors.logger_connector.result:_ResultMetric.cumulated_batch_size":
        "the examples behind a mean, which a resumed epoch adds to",
        "pytorch_lightning.trainer.connectors.logger_connector.result:_ResultMetric.has_reset":
        "a value that was reset is no value of this epoch",
        "pytorch_lightning.loops.training_epoch_loop:_TrainingEpochLoop.val_check_batch":
        "a run is validated after the steps that its plan says; its epochs may get longer",
        "pytorch_lightning.loops.training_epoch_loop:_TrainingEpochLoop._batches_that_stepped":
        "Lightning counts the step that a run was saved after again when it resumes",
    },
    "sweeper/upstream/torchs.py": {
        "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook:PowerSGDState.error_dict":
        "errors are saved with a checkpoint",
        "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook:PowerSGDState.p_memory_dict":
        "factors are saved with a checkpoint",
        "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook:PowerSGDState.q_memory_dict":
        "factors are saved with a checkpoint",
    },
}  # fmt: skip

#: Where attributes are set on objects that are not ours outside of the room, and why.
ELSEWHERE = {
    "lightning_modules/run_class.py": "the class of a user's module or data is changed here, once",
    "lightning_modules/layers/run_layer.py": "the class of a layer is changed here",
    "lightning_modules/models/library.py": "a model that was just built gets another first layer",
    "sweeper/console/printing.py": "the streams of this process",
    "sweeper/spec/config.py": "copies of our own frozen config",
    "sweeper/spec/run_spec.py": "copies of our own frozen spec",
}

ALLOCATOR_TEXT = "DefaultCPUAllocator"
#: Parts of messages, and of logs.
TEXTS = {
    "sweeper/commands/refusals.py": {
        "Could not override '": "an unknown key gets a sentence of ours",
        "Could not find '": "an unknown choice gets a sentence of ours",
        "Available options in": "the sentence lists the choices",
        "Ambiguous value for argument":
        "a key with several values where one belongs gets a sentence of ours",
        "Sweep parameters": "a key with several values where one belongs gets a sentence of ours",
        "An item is already at '":
        "a key with several values where one belongs gets a sentence of ours",
        "Multiple values for ":
        "a key with several values where one belongs gets a sentence of ours",
    },
    "lightning_modules/process/device.py": {
        ALLOCATOR_TEXT: "out of memory on a CPU is a RuntimeError with this text",
    },
    "sweeper/upstream/torchs.py": {
        "ToCopyBackward0":
        "a module that converts numbers to float32 is judged by float32's rounding",
    },
    "sweeper/launch/ranks.py": {
        "DataLoader worker (pid": "a data worker that was killed is a RuntimeError with this text",
    },
    "sweeper/launch/slurm/commands.py": {
        "CANCELLED AT": "slurmstepd's note of an end in a job's log",
        "DUE TO": "a job that no person has cancelled",
    },
}  # fmt: skip
