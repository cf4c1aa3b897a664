"""FSDP2 as a layout: parameters, gradients and optimizer state in shards, one for each rank."""

from collections import Counter
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer

from lightning_modules.layers.blocks import find_blocks
from lightning_modules.optimizers.run_strategy import RunStrategy
from lightning_modules.process.shards import check_unsharded, list_sharded, shard_like, to_save


class ShardedStrategy(RunStrategy):
    """Shards each block of the module, and what is left of it, over all ranks.

    Checkpoints hold whole tensors, as on any other layout, so a run may go on with DDP or on one
    rank.

    Args:
        block_names: classes of layers that are sharded each by itself; none: see `find_blocks`.
        shards_gradients: whether gradients are exchanged at each micro-batch, so that each rank
            keeps its shard of them; if not, it keeps whole ones, exchanged once per step.
        settings: of the other strategy.
    """

    def __init__(
        self, *, block_names: Collection[str] = (), shards_gradients: bool = False, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self._block_names, self._shards_gradients = block_names, shards_gradients
        self._mesh: DeviceMesh | None = None
        # Whether the parameters stay whole once they are gathered: always, or for an evaluation.
        self._keeps_gathered = self._is_gathered = False

    def make_mesh(self) -> DeviceMesh:
        """All ranks in a row; made once, as fake tensors cannot make it."""
        self._mesh = self._mesh or init_device_mesh(self.root_device.type, (self.world_size,))
        return self._mesh

    def configure_ddp(self) -> None:
        """Shard the module; it is not wrapped. ValueError if it shards parts of itself."""
        module, mesh = self._module, self.make_mesh()
        check_unsharded(module)
        for parameter in module.parameters():  # channels-last ones are not taken
            parameter.data = parameter.data.contiguous()
        places = _count_places(module)
        for block in find_blocks(module, self._block_names):
            if _count_places(block).items() <= places.items():  # it shares no weights with others
                fully_shard(block, mesh=mesh)
        fully_shard(module, mesh=mesh)
        self._exchanged = {p for p in module.parameters() if p.requires_grad}

    def check_agreement(self) -> None:
        """Nothing is held twice."""

    @property
    def _module(self) -> Any:
        assert self.lightning_module is not None, "it is to be trained"
        return self.lightning_module

    @contextmanager
    def block_backward_sync(self) -> Generator[None]:  # type: ignore[override]
        """Within, gradients are added up whole, unless shards of them are kept."""
        self._module.set_requires_gradient_sync(self._shards_gradients)
        self._module.set_is_last_backward(False)
        try:
            yield
        finally:
            self._module.set_requires_gradient_sync(True)
            self._module.set_is_last_backward(True)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """The module's."""
        with self.precision_plugin.train_step_context():
            return self.call("training_step", *args, **kwargs)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """The module's."""
        with self.precision_plugin.val_step_context():
            return self.call("validation_step", *args, **kwargs)

    def on_validation_start(self) -> None:
        """Gather all parameters if ranks evaluate different numbers of batches.

        Each batch would gather them, with all ranks.
        """
        number = float(sum(self._module.trainer.num_val_batches))
        most = torch.tensor([number, -number], device=self.root_device)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        if most.sum() != 0:
            self._is_gathered = True
            self._set_resharding()
            for part in list_sharded(self._module).values():
                part.unshard()

    def keep_gathered(self) -> None:
        """From now on, parameters stay whole once they are gathered, until `reshard`."""
        self._keeps_gathered = True
        self._set_resharding()

    def reshard(self) -> None:
        """Free the whole parameters; what was done to them is lost."""
        self._is_gathered = False
        self._set_resharding()
        for part in list_sharded(self._module).values():
            part.reshard()

    def _set_resharding(self) -> None:
        for name, part in list_sharded(self._module).items():
            is_block = bool(name)  # the root stays gathered from the forward to the backward pass
            stays = self._keeps_gathered or self._is_gathered
            part.set_reshard_after_forward(is_block and not stays, recurse=False)
            part.set_reshard_after_backward(not self._keeps_gathered, recurse=False)

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the module as its forward pass, which gathers the root's parameters.

        They are shards again afterwards, unless a backward pass is to follow.
        """
        outputs = self._forward_redirection(self._module, self._module, name, *args, **kwargs)
        if not (torch.is_grad_enabled() or self._is_gathered):
            self.reshard()
        return outputs

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Whole tensors; all ranks take part."""
        return to_save(super().lightning_module_state_dict())

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """The same."""
        return to_save(optimizer.state_dict())

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:  # noqa: FBT001, FBT002  Lightning's
        """Each rank's shards of whole tensors."""
        own = self._module.state_dict()
        loaded = {
            k: shard_like(own[k], v) if k in own else v for k, v in checkpoint["state_dict"].items()
        }
        super().load_model_state_dict({**checkpoint, "state_dict": loaded}, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """The same."""
        states = [
            _shard_state(optimizer, state)
            for optimizer, state in zip(
                self.optimizers, checkpoint["optimizer_states"], strict=True
            )
        ]
        super().load_optimizer_state_dict({**checkpoint, "optimizer_states": states})


def _shard_state(optimizer: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    of = dict(zip(numbers, parameters, strict=True))
    state = {
        number: {key: shard_like(of[number], value) for key, value in values.items()}
        for number, values in saved["state"].items()
    }
    return {**saved, "state": state}


def _count_places(module: nn.Module) -> Counter[nn.Parameter]:
    return Counter(p for _, p in module.named_parameters(remove_duplicate=False))
