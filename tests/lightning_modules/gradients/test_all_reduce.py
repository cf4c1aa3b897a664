"""Accumulation costs no communication: ranks talk once per optimizer step, to sum gradients."""

import json
import multiprocessing
from collections import Counter

import pytest
from provoked import count_exchanges

from sweeper.spec.worker_args import WorkerArgs


@pytest.fixture
def exchanges(config, tmp_path):
    """What one rank of a run of so many steps exchanges, start and end of the run included."""

    def count(*, steps: int, micro_batch: int, ranks: int = 1) -> Counter[str]:
        folder = tmp_path / str(steps)
        folder.mkdir()
        data = {**config()["data"], "num_train_examples": 480 * steps}
        short = {"epochs": 1, "warmup": 0, "schedule": {"name": "constant"}, "bn_span": 12}
        planned = config(data=data, batch=480, micro_batch=micro_batch, devices=ranks, **short)
        (folder / "config.json").write_text(json.dumps(planned))
        context = multiprocessing.get_context("forkserver")
        receive, send = context.Pipe(duplex=False)
        processes = []
        for number in range(ranks):
            rank = WorkerArgs(
                folder=str(folder),
                rank=number,
                local_rank=number,
                node_rank=0,
                world_size=ranks,
                threads=1,
                environment={},
            )
            processes.append(context.Process(target=count_exchanges, args=(send, rank)))
        for process in processes:
            process.start()
        send.close()  # so that a process that dies ends the wait
        received = [receive.recv() for _ in processes]
        for process in processes:
            process.join()
        receive.close()
        assert {taken for _, taken in received} == {steps}
        return received[0][0]

    return count


@pytest.mark.slow
def test_steps_of_one_rank_exchange_nothing(exchanges):
    few, more = (exchanges(steps=steps, micro_batch=60) for steps in (3, 7))

    assert more["gloo:all_reduce"] == few["gloo:all_reduce"]


@pytest.mark.slow
def test_between_exchanges_two_ranks_do_not_talk(exchanges):
    """Lightning tells ranks before each of the 20 micro-batches of a step whether to go on."""
    few = exchanges(steps=3, micro_batch=12, ranks=2)
    more = exchanges(steps=7, micro_batch=12, ranks=2)

    talk = {name: more[name] - few[name] for name in more if name.startswith("gloo:")}
    assert talk.pop("gloo:all_reduce") == 4
    assert sum(talk.values()) <= 4, talk  # whether a stop was requested, at some of the steps
