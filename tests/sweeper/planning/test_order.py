"""Which runs of a grid start first."""

from sweeper.planning.plan import Task, order_by_information
from sweeper.spec.run_spec import run_spec


def test_one_seed_comes_first_and_of_it_the_corners(config):
    tasks = [
        Task(spec=run_spec(config(seed=seed, warmup=warmup, batch=batch)), number=1)
        for seed in (0, 1)
        for warmup in (0, 5, 10)
        for batch in (3840, 7680, 15360, 30720)
    ]

    ordered = [task.spec.config for task in order_by_information(tasks)]

    assert [config.seed for config in ordered] == [0] * 12 + [1] * 12
    assert [(c.warmup, c.batch) for c in ordered[:4]] == [
        (0, 3840), (0, 30720), (10, 3840), (10, 30720),
    ]  # fmt: skip
    assert (ordered[11].warmup, ordered[11].batch) == (5, 15360)  # the last to halve both gaps


def test_what_is_no_number_keeps_its_place(config):
    rules = [{"name": name} for name in ("sqrt", "linear", "none")]
    tasks = [Task(spec=run_spec(config(lr_rule=rule)), number=1) for rule in rules]

    assert order_by_information(tasks) == tasks
