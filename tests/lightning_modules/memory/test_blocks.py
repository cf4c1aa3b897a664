"""Whether a module has the blocks that a run names or recomputes is known before it trains."""

import pytest
from users import Module

from lightning_modules.memory.short_run import find_block_error
from sweeper.commands.user_facts import add_facts
from sweeper.spec.config import run_config


class MakesLayersLate(Module):
    def setup(self, stage=None):
        del stage
        self.extra = self.body


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("model=gpt fsdp_blocks=[Nope,_Layer]", "got Nope. Those that it has several of are Line"),
        ("model=gpt fsdp_blocks=[_Layer,LayerNorm] checkpoint_activations=true", ""),
        ("model=resnet8 checkpoint_activations=true", ""),
        ("module._target_=block_users.BlockModule fsdp_blocks=[Nope]", "are Linear, Block, Dropo"),
        ("module._target_=block_users.BlockModule fsdp_blocks=[Block]", ""),
        ("module._target_=test_blocks.MakesLayersLate fsdp_blocks=[Nope]", ""),
        ("model._target_=block_users.DroppedBlocks fsdp_blocks=[Nope]", "got Nope"),
    ],
)
def test_blocks_that_a_module_lacks_are_named_with_those_that_it_has(grid, words, said):
    (config,) = grid(*words.split(), "strategy=fsdp", "devices=2", "batch=32")
    config["data"] = {**config["data"], "num_train_examples": 96}

    found = find_block_error(run_config(config))

    assert said in found
    assert bool(said) == bool(found)


def test_a_grid_is_refused_before_it_starts_with_each_mistake_once(grid, tmp_path):
    words = ["model=small_cnn,resnet8", "seed=0,1", "checkpoint_activations=true"]

    with pytest.raises(
        ValueError, match=r"^checkpoint_activations=true needs .* got SmallCNN\. U[^\n]*$"
    ):
        list(add_facts(grid(*words), tmp_path))
