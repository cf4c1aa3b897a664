"""Loaders of a user's DataModule give the run's order, and draws that belong to the example."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from lightning_modules.data.user_loaders import OwnExamples, ValLoader


class Drawing(Dataset):
    """Each example is its index and a draw of each generator."""

    def __init__(self, num=12):
        self.num = num

    def __len__(self):
        return self.num

    def __getitem__(self, index):
        if not 0 <= index < self.num:
            raise IndexError(index)
        draws = torch.rand(()), random.random(), np.random.rand()  # noqa: NPY002
        return {"index": index, "draws": torch.tensor([float(d) for d in draws])}


class Opened(Drawing):
    """Reads from what each loading process opens for itself."""

    def __getitem__(self, index):
        return super().__getitem__(index) | {
            "opened": self.opened,
            "of": get_worker_info().dataset.num,
        }


def open_own(worker_id):
    get_worker_info().dataset.opened = worker_id


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(10))


def stream(loader, micro_batch, epoch=0, seed=3):
    data = OwnExamples(loader, seed=seed)
    data.set_epoch(seed, epoch)
    order = torch.from_numpy(data.order(epoch))
    batches = list(data.train_stream(order.split(micro_batch)))
    return torch.cat([b["index"] for b in batches]), torch.cat([b["draws"] for b in batches])


def keys_of(examples):
    return [examples.request(place).key for place in range(len(examples))]


def test_every_example_comes_once_an_epoch_in_another_order():
    loader = DataLoader(Drawing(), batch_size=5, shuffle=True, drop_last=True)

    first, second = stream(loader, 4)[0], stream(loader, 4, epoch=1)[0]

    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(12))
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_draws_belong_to_the_example_whatever_the_micro_batch(num_workers):
    loader = DataLoader(Drawing(), batch_size=4, shuffle=True, num_workers=num_workers)
    alone = DataLoader(Drawing(), batch_size=4, shuffle=True)

    index, draws = stream(loader, 4)
    again, same = stream(alone, 3)

    assert torch.equal(index, again)
    assert torch.equal(draws, same)
    assert len(draws.unique(dim=0)) == 12


def test_a_loading_process_finds_the_users_data_set():
    loader = DataLoader(Opened(), shuffle=True, num_workers=2, worker_init_fn=open_own)

    data = OwnExamples(loader, seed=0)
    data.set_epoch(0, 0)
    batches = [*data.train_stream(iter(torch.arange(12).split(3)))]

    assert {int(n) for batch in batches for n in batch["opened"]} == {0, 1}
    assert {int(n) for batch in batches for n in batch["of"]} == {12}


def test_draws_differ_between_epochs_and_seeds():
    loader = DataLoader(Drawing(), batch_size=4, shuffle=False)

    def draws(epoch, seed):
        index, values = stream(loader, 4, epoch=epoch, seed=seed)
        return values[index.argsort()]

    assert not torch.equal(draws(0, 3), draws(1, 3))
    assert not torch.equal(draws(0, 3), draws(0, 4))


def test_a_loader_that_does_not_shuffle_keeps_its_order():
    assert stream(DataLoader(Drawing(), batch_size=4), 3)[0].tolist() == list(range(12))


@pytest.mark.parametrize(
    "sampler",
    [
        SubsetRandomSampler([1, 3, 5]),
        WeightedRandomSampler([0, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0], num_samples=6),
    ],
)
def test_a_sampler_of_ones_own_gives_the_examples(sampler):
    loader = DataLoader(Drawing(), batch_size=3, sampler=sampler)

    index, _ = stream(loader, 2)

    assert len(index) == len(sampler)
    assert set(index.tolist()) <= {1, 3, 5}
    assert torch.equal(index, stream(loader, 3)[0])


class Scaled(Drawing):
    """Its keys are pairs, or a pair of slices as geographic samplers give."""

    def __getitem__(self, key):
        index, scale = key
        if isinstance(index, slice):
            index, scale = index.start, scale.stop
        return super().__getitem__(index) | {"scale": scale}


@pytest.mark.parametrize(
    "keys",
    [
        [(index, scale) for index in range(6) for scale in (1, 2)],
        [(slice(index, index + 1), slice(0, scale)) for index in range(6) for scale in (1, 2)],
    ],
)
@pytest.mark.parametrize("in_batches", [False, True])
def test_keys_of_a_sampler_may_be_anything(keys, in_batches):
    given = {"batch_sampler": [keys[:5], keys[5:]]} if in_batches else {"sampler": keys}
    loader = DataLoader(Scaled(), **given)

    index, draws = stream(loader, 4)

    assert index.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert torch.equal(draws, stream(loader, 3)[1])
    assert len(draws.unique(dim=0)) == 12


def test_an_example_that_comes_again_has_other_draws():
    """As with repeated augmentation; also where two batches begin with the same example."""
    loader = DataLoader(Drawing(), sampler=[3, 3, 4, 3, 4, 4])

    index, draws = stream(loader, 3)

    assert index.tolist() == [3, 3, 4, 3, 4, 4]
    assert len(draws.unique(dim=0)) == 6
    assert torch.equal(draws, stream(loader, 2)[1])
    once = stream(DataLoader(Drawing(), sampler=[3, 4]), 2)[1]
    assert torch.equal(once, draws[[0, 2]])


class Columns(Dataset):
    """Gives a batch for a list of indices, as tables and Hugging Face's data sets do."""

    def __len__(self):
        return 12

    def __getitem__(self, indices):
        assert isinstance(indices, list)
        return {"index": torch.tensor(indices), "draws": torch.zeros(len(indices), 3)}


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_data_set_that_gives_batches_is_asked_for_micro_batches(shuffle):
    inner = (RandomSampler if shuffle else SequentialSampler)(Columns())
    batches = BatchSampler(inner, 4, drop_last=False)
    loader = DataLoader(Columns(), batch_size=None, sampler=batches)

    index = stream(loader, 3)[0]

    assert sorted(index.tolist()) == list(range(12))
    assert (index.tolist() == list(range(12))) != shuffle
    assert torch.equal(index, stream(loader, 6)[0])


def test_batches_of_a_batch_sampler_are_taken_one_after_the_other():
    loader = DataLoader(Drawing(), batch_sampler=[[4, 5], [1], [2, 3]])

    assert stream(loader, 2)[0].tolist() == [4, 5, 1, 2, 3]


def test_batches_by_a_budget_are_refused():
    loader = DataLoader(Drawing(), batch_sampler=[[0], [1, 2, 3, 4, 5, 6], [7, 8], [9, 10, 11]])

    with pytest.raises(ValueError, match="got list, whose 4 batches have 1 to 6, as by a budget"):
        OwnExamples(loader, seed=0)


@pytest.mark.parametrize("num", [3, 7, 12, 30])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_whole_validation_batches_are_dealt_to_ranks_that_all_have_as_many(num, world_size):
    loader = DataLoader(Drawing(num), batch_size=4)

    ranks = [
        ValLoader(loader, seed=0, rank=rank, world_size=world_size) for rank in range(world_size)
    ]

    seen = {
        number: batch["index"].tolist()
        for rank in ranks
        for number, size, batch in zip(rank.numbers, rank.sizes, rank, strict=True)
        if size == len(batch["index"])
    }
    assert [seen[n] for n in sorted(seen)] == [
        list(range(first, min(first + 4, num))) for first in range(0, num, 4)
    ]
    assert len({len(rank) for rank in ranks}) == 1
    assert sum(sum(rank.sizes) for rank in ranks) == num


def test_batches_of_a_batch_sampler_are_validated_as_they_are():
    batches = [[3, 1], [0], [*range(4, 12)]]

    loader = ValLoader(DataLoader(Drawing(), batch_sampler=batches), seed=0, rank=0, world_size=1)

    assert [batch["index"].tolist() for batch in loader] == batches


def test_no_validation_examples_are_refused():
    with pytest.raises(ValueError, match="must have examples; got none in Drawing"):
        ValLoader(DataLoader(Drawing(0)), seed=0, rank=0, world_size=3)


def test_what_is_no_loader_is_refused():
    with pytest.raises(ValueError, match=r"train_dataloader must return a .* got list"):
        OwnExamples([DataLoader(Drawing())], seed=0)
    with pytest.raises(ValueError, match=r"a length and indices.* got Endless, which is iterable"):
        OwnExamples(DataLoader(Endless()), seed=0)
    with pytest.raises(ValueError, match="batch_size=None and the sampler SequentialSampler"):
        OwnExamples(DataLoader(Drawing(), batch_size=None), seed=0)


def test_a_loader_that_changes_its_batches_is_refused():
    class Doubled(DataLoader):
        def __iter__(self):
            return (batch | {"index": 2 * batch["index"]} for batch in super().__iter__())

    sentence = r"val_dataloader must return a DataLoader whose batches are .* got Doubled, whose"
    with pytest.raises(ValueError, match=sentence):
        ValLoader(Doubled(Drawing()), seed=0, rank=0, world_size=1)


def test_the_sampler_within_a_batch_sampler_gives_the_order():
    sampler = BatchSampler(SubsetRandomSampler([2, 4, 6]), batch_size=2, drop_last=False)

    order = stream(DataLoader(Drawing(), batch_sampler=sampler), 2)[0]

    assert sorted(order.tolist()) == [2, 4, 6]


class SeededByEpoch(Sampler):
    """Draws by the epoch of `set_epoch`, as DistributedSampler does."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 12

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.epoch)
        return iter(torch.randperm(12, generator=generator).tolist())


class Counting(SeededByEpoch):
    """Counts its passes itself."""

    def set_epoch(self, epoch):
        pass

    def __iter__(self):
        yield from super().__iter__()
        self.epoch += 1


class Numpys(SeededByEpoch):
    """Draws from a generator of its own, which goes on from pass to pass."""

    def __init__(self):
        self.draws = np.random.default_rng(0)

    def __iter__(self):
        return iter(self.draws.permutation(12).tolist())


SAMPLERS = {
    "by epoch": SeededByEpoch,
    "counting": Counting,
    "numpy": Numpys,
    "torch": lambda: SubsetRandomSampler(range(12), generator=torch.Generator().manual_seed(0)),
    "batches": lambda: BatchSampler(Counting(), 5, drop_last=False),
}


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_sampler_has_an_order_for_each_epoch_whoever_resumes(kind):
    def loader():
        given = "batch_sampler" if kind == "batches" else "sampler"
        return DataLoader(Drawing(), **{given: SAMPLERS[kind]()})

    whole = OwnExamples(loader(), seed=3)
    orders = [keys_of(whole.examples(epoch)) for epoch in range(3)]

    assert len({tuple(order) for order in orders}) == 3
    assert keys_of(OwnExamples(loader(), seed=3).examples(2)) == orders[2]
