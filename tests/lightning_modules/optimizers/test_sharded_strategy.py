"""Which layers are sharded each by itself, and modules that shard themselves."""

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from lightning_modules.layers.blocks import find_blocks
from lightning_modules.process.shards import check_unsharded


def test_blocks_are_the_longest_sequence_of_equal_layers_or_named_by_their_class():
    norms = nn.Sequential(*(nn.LayerNorm(4) for _ in range(2)))
    module = nn.ModuleDict({"norms": norms, "body": nn.ModuleList(nn.Linear(4, 4) for _ in "abc")})

    assert find_blocks(module) == [*module["body"]]
    assert find_blocks(module, ["LayerNorm"]) == [norms[1], norms[0]]
    with pytest.raises(ValueError, match=r"got Block\. Those that it has several of are Linear"):
        find_blocks(module, ["Block"])


def test_a_module_that_shards_itself_is_refused():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    check_unsharded(module)
    fully_shard(module[1])

    with pytest.raises(ValueError, match=r"got fully_shard of 1\. Remove it"):
        check_unsharded(module)
    dist.destroy_process_group()
