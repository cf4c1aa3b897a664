"""FSDP2 as a layout: parameters, gradients and optimizer state in shards, one for each rank."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.optim import Optimizer

from lightning_modules.layers.blocks import find_blocks
from lightning_modules.optimizers.run_strategy import RunStrategy
from lightning_modules.process.shards import shard_like, to_save


class ShardedStrategy(RunStrategy):
    """Shards each repeated block of the module, and what is left of it, over all ranks.

    Whole gradients are kept on each rank while a step accumulates, and exchanged once. Checkpoints
    hold whole tensors, as on any other layout, so a run may go on with DDP or on one rank.
    """

    def configure_ddp(self) -> None:
        """Shard the module; it is not wrapped."""
        assert self.lightning_module is not None, "it is to be trained"
        module, device = self.lightning_module, self.root_device.type
        mesh = init_device_mesh(device, (self.world_size,))
        for parameter in module.parameters():  # channels-last ones are not taken
            parameter.data = parameter.data.contiguous()
        for block in find_blocks(module):
            fully_shard(block, mesh=mesh)
        fully_shard(module, mesh=mesh)
        self._exchanged = {p for p in module.parameters() if p.requires_grad}

    def check_agreement(self) -> None:
        """Nothing is held twice."""

    @property
    def _sharded(self) -> FSDPModule:
        assert isinstance(self.lightning_module, FSDPModule), "sharded before it is trained"
        return self.lightning_module

    @contextmanager
    def block_backward_sync(self) -> Generator[None]:  # type: ignore[override]
        """Within, gradients are added up whole."""
        self._sharded.set_requires_gradient_sync(False)
        self._sharded.set_is_last_backward(False)
        try:
            yield
        finally:
            self._sharded.set_requires_gradient_sync(True)
            self._sharded.set_is_last_backward(True)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """The module's, through its call, which gathers the root's parameters."""
        with self.precision_plugin.train_step_context():
            return self._call("training_step", *args, **kwargs)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """The same; its parameters are shards again afterwards, as no backward pass follows."""
        with self.precision_plugin.val_step_context():
            outputs = self._call("validation_step", *args, **kwargs)
        self._sharded.reshard()
        return outputs

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        module = self.lightning_module
        assert module is not None, "it is to be trained"
        return self._forward_redirection(module, module, name, *args, **kwargs)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Whole tensors; all ranks take part."""
        return to_save(super().lightning_module_state_dict())

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """The same."""
        return to_save(optimizer.state_dict())

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:  # noqa: FBT001, FBT002  Lightning's
        """Each rank's shards of whole tensors."""
        assert self.lightning_module is not None, "it is to be trained"
        own = self.lightning_module.state_dict()
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
