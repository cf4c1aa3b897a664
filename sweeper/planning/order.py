"""The order in which a grid's runs start: those that say most about the whole grid come first."""

from collections.abc import Sequence

from sweeper.planning.plan import Task
from sweeper.spec.run_spec import RunSpec


def by_information(tasks: Sequence[Task]) -> list[Task]:
    """Order by seed; within a seed the corners of the grid first, then points that halve the gaps.

    A curve over all batches is complete as soon as the first seed is, and has its ends before that.
    """
    ranks = information_ranks([task.spec for task in tasks])
    return sorted(tasks, key=lambda task: ranks[task.spec.run_id])


def information_ranks(specs: Sequence[RunSpec]) -> dict[str, tuple[int, int]]:
    """By run id: the position of its seed, and after how many halvings of gaps it is reached."""
    words = {spec.run_id: {k: text for k, (text, _) in spec.words.items()} for spec in specs}
    keys = dict.fromkeys(key for one in words.values() for key in one if key != "seed")
    depths = {key: _depths([one.get(key) for one in words.values()]) for key in keys}
    seeds = list(dict.fromkeys(one["seed"] for one in words.values()))
    places = {seed: place for place, seed in enumerate(seeds)}
    return {
        run_id: (places[one["seed"]], sum(depths[key].get(one.get(key), 0) for key in keys))
        for run_id, one in words.items()
    }


def _depths(values: Sequence[str | None]) -> dict[str | None, int]:
    """By value, after how many halvings of gaps it is reached; empty if a value is not a number."""
    try:
        number_of = {value: float(value or "") for value in dict.fromkeys(values)}
    except ValueError:
        return {}
    numbers = sorted(set(number_of.values()))
    depths = {0: 0, len(numbers) - 1: 0}
    gaps = [(0, len(numbers) - 1, 1)]
    for first, last, depth in gaps:
        if last - first > 1:
            middle = (first + last) // 2
            depths[middle] = depth
            gaps += [(first, middle, depth + 1), (middle, last, depth + 1)]
    places = {number: place for place, number in enumerate(numbers)}
    return {value: depths[places[number]] for value, number in number_of.items()}
