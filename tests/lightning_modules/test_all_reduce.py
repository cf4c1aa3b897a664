"""Accumulation costs no communication: gradients are exchanged once per optimizer step."""

import json
import multiprocessing

import pytest
from provoked import count_all_reduces

from sweeper.rank import Rank


@pytest.fixture
def exchanges(config, tmp_path):
    """How many all-reduces a run of so many steps makes, start and end of the run included."""

    def count(*, steps: int, micro_batch: int) -> int:
        folder = tmp_path / str(steps)
        folder.mkdir()
        data = {**config()["data"], "num_train_examples": 3840 * steps}
        short = {"epochs": 1, "warmup": 0, "schedule": {"name": "constant"}, "bn_span": 96}
        planned = config(data=data, micro_batch=micro_batch, **short)
        (folder / "config.json").write_text(json.dumps(planned))
        rank = Rank(
            folder=str(folder),
            checkpoint="",
            rank=0,
            local_rank=0,
            node_rank=0,
            world_size=1,
            threads=1,
            environment={},
        )
        context = multiprocessing.get_context("forkserver")
        receive, send = context.Pipe(duplex=False)
        process = context.Process(target=count_all_reduces, args=(send, rank))
        process.start()
        counted, taken = receive.recv()
        process.join()
        receive.close()
        send.close()
        assert taken == steps
        return counted

    return count


@pytest.mark.parametrize("micro_batch", [3840, 480], ids=["1 micro-batch", "8 micro-batches"])
def test_each_further_step_exchanges_gradients_once(exchanges, micro_batch):
    few = exchanges(steps=3, micro_batch=micro_batch)
    more = exchanges(steps=7, micro_batch=micro_batch)

    assert more - few == 4
