"""Accumulation costs no communication: ranks talk once per optimizer step, to sum gradients."""

from collections import Counter
from functools import partial

import pytest
from ranks import ask_ranks, count_exchanges


@pytest.fixture
def exchanges(config, tmp_path):
    """What one rank of a run of so many steps exchanges, start and end of the run included."""

    def count(*, steps: int, micro_batch: int, ranks: int = 1) -> Counter[str]:
        folder = tmp_path / str(steps)
        folder.mkdir()
        data = {**config()["data"], "num_train_examples": 480 * steps}
        short = {"epochs": 1, "warmup": 0, "schedule": {"name": "constant"}, "bn_span": 12}
        planned = config(data=data, batch=480, micro_batch=micro_batch, devices=ranks, **short)
        answer = partial(count_exchanges, planned)
        received = ask_ranks(answer, folder / "meeting", world_size=ranks)
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
