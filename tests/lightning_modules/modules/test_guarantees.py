"""What holds for a project that knows nothing of ours is found out, each by what breaks it."""

import copy
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_sequence
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, default_collate

from lightning_modules.data.own_loaders import Request
from lightning_modules.data.randomness import seed_everything
from lightning_modules.modules import trial_steps
from lightning_modules.modules.comparisons import fingerprint, is_same_example
from lightning_modules.modules.own_project import facts
from lightning_modules.modules.trial_findings import check_seeds, findings
from sweeper.upstream.torchs import record_seeds

ALL = {
    "fixed rates": True,
    "keyed items": True, "separate items": True, "additive loss": True, "keyed draws": True,
    "whole checkpoint": True,
}  # fmt: skip


class Items(Dataset):
    """Vectors with noise from a global generator, or from one of their own."""

    def __init__(self, own=None):
        self.own = own

    def __len__(self):
        return 9

    def __getitem__(self, index):
        noise = self.own.random() if self.own else random.random() + np.random.rand()  # noqa: NPY002
        return torch.linspace(0, 1 + index, 4) + noise + torch.rand(1)


class Line(pl.LightningModule):
    """A mean over examples, with keyed dropout and BatchNorm; nothing is lost."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), *layers, nn.Linear(6, 1)
        )
        self.register_buffer("steps", torch.tensor(0))
        self.same_layers = [self.layers]  # a name for what is in the checkpoint

    def training_step(self, batch):
        self.steps += 1
        self.log("loss", loss := self.layers(batch).square().mean())
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)


class Summed(Line):
    def training_step(self, batch):
        return self.layers(batch).square().sum()


class Assigned(Line):
    """Its loss is the same with any examples, its gradient is not."""

    def training_step(self, batch):
        loss = self.layers[0](batch).sum()
        return loss - loss.detach()


class Contrastive(Line):
    """Each example against the others of its micro-batch."""

    def training_step(self, batch):
        views = self.layers[0](batch)
        return functional.cross_entropy(views @ views.T, torch.arange(len(views)))


class Mined(Line):
    """Only examples that are far apart, of which there are none among a few, have a loss."""

    def training_step(self, batch):
        views = self.layers[0](batch)
        return functional.relu(torch.cdist(views, views) - 1e6).mean()


class Drawing(Line):
    """Dropout as a function, which evaluation ends, as it does what is logged by step."""

    def training_step(self, batch):
        self.log("loss", 0.0, on_step=self.training)
        return functional.dropout(self.layers(batch), 0.5, self.training).square().mean()


class Sided(Line):
    """Has a second answer in training only, as Inception has."""

    def forward(self, batch):
        answer = self.layers(batch)
        return (answer, answer) if self.training else answer

    def training_step(self, batch):
        first, second = self(batch)
        return (first + second).square().mean()


class Sampling(Sided):
    """Draws too, which evaluation would end if a step could be made there."""

    def training_step(self, batch):
        return super().training_step(batch) * random.random()


class Noisy(Line):
    def training_step(self, batch):
        return (self.layers(batch) + random.random()).square().mean()


class Forgetful(Line):
    def __init__(self):
        super().__init__()
        self.average = 0.0

    def training_step(self, batch):
        loss = super().training_step(batch)
        self.average += loss.item()
        return loss


class Saving(Forgetful):
    def on_save_checkpoint(self, checkpoint):
        checkpoint["average"] = self.average


class Counter(nn.Identity):
    """Keeps a number in the checkpoint by itself."""

    seen = 0

    def forward(self, x):
        self.seen += 1
        return x

    def get_extra_state(self):
        return self.seen


class Extra(Line):
    def __init__(self):
        super().__init__(Counter())


class Hooked(Line):
    """What a hook keeps of a layer is in the loss of the same step."""

    def __init__(self):
        super().__init__()
        self.kept = {}
        self.layers[0].register_forward_hook(lambda _, __, out: self.kept.update(out=out))

    def training_step(self, batch):
        return super().training_step(batch) + self.kept["out"].square().mean()


class Recalling(Line):
    """What a step keeps is in the loss of the next one."""

    def __init__(self):
        super().__init__()
        self.kept = 0.0

    def training_step(self, batch):
        kept, self.kept = self.kept, self.layers[0](batch).mean().item()
        return super().training_step(batch) * (1 + kept)


class Single(Line):
    """Makes numbers of 32 bits, with which 64 cannot be multiplied."""

    def training_step(self, batch):
        return (
            self.layers(batch).square().mean()
            + (torch.ones(1, 6).float() @ self.layers[0].weight).sum()
        )


class Raising(Line):
    def training_step(self, _):
        raise RuntimeError("no such kernel")


class Backwards(Line):
    """Dropout where the examples do not come first."""

    def __init__(self):
        super().__init__()
        self.late = nn.Dropout(0.1)

    def training_step(self, batch):
        return self.late(self.layers(batch).T).square().mean()


class Tall(Line):
    """Dropout over two rows for each example, one after all the others."""

    def __init__(self):
        super().__init__()
        self.late = nn.Dropout(0.5)

    def training_step(self, batch):
        views = self.layers(batch)
        return self.late(torch.cat([views, views])).square().mean()


class Unsaved(Line):
    """Has buffers that are in no checkpoint: an average of each step, a table that may grow."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.tensor(0.0), persistent=False)
        self.register_buffer("table", torch.arange(1.0), persistent=False)

    def training_step(self, batch):
        if len(self.table) < len(batch):
            self.table = torch.arange(float(len(batch)))
        return super().training_step(batch)

    def on_before_zero_grad(self, *_):
        self.average += self.layers[0].weight.mean().item()


class Counting(Line):
    """Weighs its loss by how many micro-batches there were."""

    def training_step(self, batch):
        return super().training_step(batch) * (1 + 0.1 * float(self.steps))


class Annealed(Line):
    """Weighs its loss by how many steps there were, and some of its gradients are sparse."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(3, 2, sparse=True)
        self.wave = nn.Linear(4, 2, dtype=torch.cfloat)
        nn.utils.spectral_norm(self.layers[0]).eval()  # whose weight is an attribute of each step

    def training_step(self, batch):
        waves = self.wave(batch.to(self.wave.weight.dtype)).abs()
        return (
            super().training_step(batch) * (1 + 0.1 * self.global_step)
            + (waves * self.table((batch[:, 0] > 1).long())).mean()
        )

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Following(Line):
    """A slow copy of a layer, moved after each micro-batch."""

    def __init__(self):
        super().__init__()
        self.slow = copy.deepcopy(self.layers[0]).requires_grad_(False)

    def on_train_batch_end(self, *_):
        for slow, fast in zip(self.slow.parameters(), self.layers[0].parameters(), strict=True):
            slow.data.lerp_(fast.data, 0.1)


class Averaged(Line):
    """The same by torch's own average, whose copy counts as trained."""

    def __init__(self):
        super().__init__()
        average = get_ema_multi_avg_fn(0.9)
        self.slow = AveragedModel(self.layers[0], multi_avg_fn=average, use_buffers=True)

    def on_train_batch_end(self, *_):
        self.slow.update_parameters(self.layers[0])


class Dividing(Line):
    """Divides its loss by the number of micro-batches, as Lightning does too."""

    def training_step(self, batch):
        return super().training_step(batch) / self.trainer.accumulate_grad_batches


class Shared(Line):
    """Draws from a generator that all modules of its class share."""

    generator = np.random.default_rng(0)

    def on_before_zero_grad(self, *_):
        self.generator.random()


class Stepping(Following):
    """Moved before each step."""

    def on_train_batch_end(self, *_):
        pass

    def on_before_zero_grad(self, *_):
        super().on_train_batch_end()

    def on_before_optimizer_step(self, _):
        """Noise on the gradient, which has draws of the step."""
        self.layers[0].weight.grad += 0.01 * torch.randn(6, 4)


class Looking(Line):
    """Passes over training data in hooks of its own, as for a first look or a bank of features."""

    def on_fit_start(self):
        next(iter(self.trainer.datamodule.train_dataloader()))

    def on_train_epoch_start(self):
        assert len([*self.trainer.train_dataloader]) > 1


class Frozen(Line):
    """A part that is not trained, and in evaluation."""

    def __init__(self):
        super().__init__(nn.Sequential(nn.RReLU(), nn.Dropout(), nn.Linear(6, 6)).eval())


class Data(pl.LightningDataModule):
    pass


def mixed(examples):
    batch = default_collate(examples)
    return batch + batch.flip(0)


def padded(examples):
    """As long as the longest, whose length is given."""
    lengths = [1 + int(example[-1] * 10) % 4 for example in examples]
    rows = [
        [*example[:n], *[0.0] * (max(lengths) - n)]
        for example, n in zip(examples, lengths, strict=True)
    ]
    return {"rows": torch.tensor(rows), "lengths": lengths, "longest": max(lengths)}


def look(module=Line, items=None, collate=None, num=9, **more):
    def make():
        seed_everything(0)
        return module()

    loader = DataLoader(items or Items(), batch_size=3, collate_fn=collate)
    examples = [Request((0, index), index) for index in range(num)]
    return findings(make, Data(), loader, examples, **more)


def held(found):
    return {name: finding["holds"] for name, finding in found.items()}


@pytest.mark.parametrize("module", [Line, Stepping, Frozen, Annealed, Looking, Hooked, Sided])
def test_all_holds_for_a_mean_over_examples_with_keyed_dropout(module):
    assert held(look(module)) == ALL


@pytest.mark.parametrize(
    ("module", "name", "holds", "message"),
    [
        (Summed, "additive loss", False, "it is a sum, so"),
        (Contrastive, "additive loss", False, "it is not a mean, so"),
        (Assigned, "additive loss", False, "(the gradient or a later digit differs)"),
        (Mined, "additive loss", None, "not determined: the gradient of so few examples is 0"),
        (Drawing, "keyed draws", False, "draws at random outside dropout layers, or in"),
        (Forgetful, "whole checkpoint", False, "a step changes average, which no checkpoint"),
        (Unsaved, "whole checkpoint", False, "a step changes average, which no checkpoint"),
        (Counting, "additive loss", False, "it is not a mean, so"),
        (Saving, "whole checkpoint", None, "on_save_checkpoint may save"),
        (Extra, "whole checkpoint", None, "changes layers.3.seen, which get_extra_state may save"),
        (Backwards, "keyed draws", False, "in layers whose rows are not the examples:"),
        (Tall, "keyed draws", False, "rows of a dropout layer are not the examples"),
        (
            Following,
            "additive loss",
            False,
            "changes slow.weight, slow.bias: each",
        ),
        (Averaged, "additive loss", False, "every step, changes slow.module.weight, slow.mod"),
        (
            Dividing,
            "additive loss",
            False,
            "depends on how many there are in a step, as with a loss",
        ),
        (
            Shared,
            "whole checkpoint",
            False,
            "a step changes generator, which no checkpoint contains",
        ),
    ],
)
def test_what_does_not_hold_is_found_out_and_nothing_else(module, name, holds, message):
    found = look(module)

    assert held(found) == {**ALL, name: holds}
    assert message in found[name]["message"]


@pytest.mark.parametrize(("module", "additive"), [(Line, True), (Assigned, False)])
def test_gradients_of_large_models_are_compared_in_fewer_numbers(module, additive, monkeypatch):
    monkeypatch.setattr(trial_steps, "_ENTRIES", 8)

    assert held(look(module)) == {**ALL, "additive loss": additive}


def test_what_a_step_recalls_of_the_one_before_is_lost():
    found = look(Recalling)

    assert held(found) == {**ALL, "additive loss": False, "whole checkpoint": False}
    assert found["whole checkpoint"]["message"].startswith(
        "a step changes kept, which no checkpoint"
    )


@pytest.mark.parametrize("module", [Noisy, Sampling])
def test_a_loss_that_is_drawn_at_random_cannot_be_compared(module):
    assert held(look(module)) == {**ALL, "keyed draws": False, "additive loss": None}


def test_attention_is_named_as_what_may_draw():
    class Attentive(Line):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(6, 1, dropout=0.1, batch_first=True)

        def training_step(self, batch):
            views = self.layers[0](batch)[:, None]
            return self.attention(views, views, views)[0].square().mean()

    found = look(Attentive)

    assert held(found) == {**ALL, "keyed draws": False}
    assert "(attention (MultiheadAttention, dropout=0.1))" in found["keyed draws"]["message"]


def test_generators_of_the_data_sets_own_are_found_out():
    found = look(items=Items(random.Random(0)))

    assert held(found) == {**ALL, "keyed items": False, "separate items": None}


def packed(examples):
    rows = [torch.as_tensor(example)[: 1 + i % 3] for i, example in enumerate(examples)]
    return pack_sequence([row[:, None] for row in rows], enforce_sorted=False)


class Kept(Items):
    """Draws an item once."""

    def __init__(self):
        super().__init__()
        self.kept = {}

    def __getitem__(self, index):
        if index not in self.kept:
            self.kept[index] = super().__getitem__(index)
        return self.kept[index]


def test_items_that_are_drawn_once_are_found_out():
    found = look(items=Kept())["keyed items"]

    assert not found["holds"]
    assert "only when it is read first" in found["message"]


def test_items_of_one_number_of_a_table_are_compared():
    table = torch.rand(1, 7)

    assert fingerprint(table[:, 3]) == fingerprint(table[:, 3].clone()) != fingerprint(table[:, 2])


def test_sequences_are_compared_as_they_were_before_they_were_packed():
    many, alone = packed(torch.eye(3)), packed(torch.eye(3)[:1])

    assert is_same_example(many, alone, 0, 3)
    assert not is_same_example(many, alone, 1, 3)


def test_neighbours_may_pad_an_example_but_not_change_it():
    assert held(look(collate=padded, module=Raising))["separate items"]
    assert held(look(collate=mixed)) == {**ALL, "separate items": False, "additive loss": None}


def test_offsets_depend_on_neighbours_and_are_not_in_the_loss():
    class Bags(Line):
        def __init__(self):
            super().__init__()
            self.bags = nn.EmbeddingBag(9, 4)

        def training_step(self, batch):
            return super().training_step(self.bags(*batch))

    def bags(examples):
        places = [torch.arange(1 + int(example[-1]) % 4) for example in examples]
        lengths = torch.tensor([0, *map(len, places[:-1])])
        return torch.cat(places), lengths.cumsum(0)

    assert held(look(Bags, collate=bags)) == ALL


def test_batches_of_a_class_of_their_own_are_compared_by_what_is_in_them():
    """Of graphs, say; a sum over all nodes has no entries that are an example's."""

    class Graphs:
        def __init__(self, items, make):
            self.kind, self.nodes = "graphs", make(torch.stack(items))

    def separate(make):
        found = look(collate=lambda items: Graphs(items, make), module=Raising)
        return held(found)["separate items"]

    assert separate(lambda nodes: nodes)
    assert separate(lambda nodes: nodes - nodes.mean()) is False
    assert separate(lambda nodes: nodes.sum()) is None


def test_a_module_of_32_bits_is_looked_at_in_32_bits():
    assert held(look(Single)) == ALL


def test_a_module_that_raises_is_told_with_its_words():
    found = look(Raising)

    assert held(found) == {
        **ALL, "additive loss": None, "keyed draws": None, "whole checkpoint": None,
        "fixed rates": None,
    }  # fmt: skip
    assert found["additive loss"]["message"].startswith(
        "not determined: a training step on a CPU raised RuntimeError: no such kernel, in "
        f"{__file__}, line "
    )
    assert found["additive loss"]["do"] == "Training may fail too."


def test_a_loss_that_is_no_number_is_compared_with_nothing():
    class Nowhere(Line):
        def training_step(self, batch):
            return super().training_step(batch) * float("nan")

    found = look(Nowhere)["additive loss"]

    assert (found["holds"], found["message"][-3:]) == (None, "nan")


def test_a_module_that_ends_its_epoch_early_is_not_found_out():
    class Short(Line):
        def on_train_batch_start(self, _batch, batch_idx):
            return -1 if batch_idx == 2 else None

    said = look(Short)["additive loss"]["message"]

    assert said.endswith("RuntimeError: the module ended the epoch early")


def test_one_example_has_no_parts():
    assert held(look(num=1))["additive loss"] is None


def test_a_project_that_seeds_generators_is_found_out():
    before = (torch.manual_seed, random.seed, np.random.seed)
    seeds = []
    with record_seeds(seeds):
        pl.seed_everything(42)

    assert {*seeds} == {42}
    assert torch.initial_seed() == 42
    assert (torch.manual_seed, random.seed, np.random.seed) == before
    holds = {run_seed: held(check_seeds(seeds, run_seed, {"width": 42})) for run_seed in (0, 42)}
    assert holds == {0: {"seeds apply": False}, 42: {"seeds apply": None}}


def test_a_project_that_seeds_with_the_runs_seed_as_it_is_told_has_done_enough():
    settings = {"module.random_seed": 42}

    found = check_seeds([42], 42, settings)["seeds apply"]

    assert (found["holds"], found["seed"]) == (True, 42)
    assert "module.random_seed" in found["message"]
    assert held(check_seeds([7], 42, settings)) == {"seeds apply": False}


def test_items_of_a_loss_weigh_its_parts():
    class Tokens(Line):
        """The mean over what is above 1."""

        def training_step(self, batch):
            kept = batch > 1
            return (self.layers(batch) * kept).sum() / kept.sum()

    rising = [torch.linspace(0, 1 + index, 4) for index in range(9)]

    assert held(look(Tokens, rising)) == {**ALL, "additive loss": False}
    assert held(look(Tokens, rising, weigh=lambda batch: (batch > 1).sum().item())) == ALL


@pytest.mark.parametrize(
    ("example", "module", "data", "additive"),
    [
        ("regression", "FriedmanModule", "FriedmanDataModule", True),
        ("text", "TextModule", "TextDataModule", False),
        ("boxes", "BoxModule", "BoxDataModule", False),
    ],
)
def test_the_examples(monkeypatch, example, module, data, additive):
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "examples")
    config = {
        "module": {"_target_": f"{example}.{module}"},
        "data": {"_target_": f"{example}.{data}"},
        "seed": 0,
    }

    found = facts(config)

    assert held(found["found"]) == {**ALL, "additive loss": additive, "seeds apply": True}
    for name in [name for name in sys.modules if name.partition(".")[0] == example]:
        monkeypatch.delitem(sys.modules, name)


class FollowingPlateau(Line):
    """Follows a value by step: its own of each micro-batch, or one that no step logs."""

    def __init__(self, monitor="loss"):
        super().__init__()
        self.monitor = monitor

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        follows = {"monitor": self.monitor, "interval": "step", "strict": False}
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, **follows}}


def test_a_scheduler_that_follows_a_micro_batch_is_told():
    found = look(FollowingPlateau)["fixed rates"]

    assert found["holds"] is False
    assert "follows loss from step to step" in found["message"]
    assert look(lambda: FollowingPlateau("val/loss"))["fixed rates"]["holds"]


class Cycling(Line):
    """OneCycle writes the first beta."""

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1, weight_decay=0.2)
        one_cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 120)
        return [optimizer], [{"scheduler": one_cycle, "interval": "step"}]


def test_the_settings_of_groups_and_those_that_schedulers_write_are_told():
    plain, cycling = (look(module)["fixed rates"] for module in (Line, Cycling))

    assert plain["settings"][0]["betas"] == (0.9, 0.999)
    assert cycling["settings"][0]["weight_decay"] == 0.2
    assert cycling["settings"][0]["betas"] is None


class WithItsOptimizer(Line):
    """Gets optimizer and scheduler when it is made, as routines of torch-uncertainty do."""

    def __init__(self):
        super().__init__()
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [5])

    def configure_optimizers(self):
        return [self.optimizer], [self.scheduler]


def test_a_scheduler_that_was_made_with_its_module_begins_anew_on_each_layout():
    assert look(WithItsOptimizer)["fixed rates"]["holds"]


class InFloat32(Line):
    """Computes its loss in float32, as causal models of Hugging Face do."""

    def training_step(self, batch):
        return self.layers(batch).float().square().mean()


class SummedInFloat32(Line):
    def training_step(self, batch):
        return self.layers(batch).float().square().sum()


def test_a_module_that_computes_in_float32_is_judged_by_its_rounding():
    assert held(look(InFloat32)) == ALL
    assert look(InFloat32)["additive loss"]["in_float32"]
    assert not look(Line)["additive loss"]["in_float32"]
    assert look(SummedInFloat32)["additive loss"]["holds"] is False


class Net(nn.Module):
    """A model for our classifier."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.layer = nn.Linear(int(np.prod(input_shape)), num_classes)

    def forward(self, images):
        return self.layer(images.flatten(1))


class Spectral(Net):
    """Its buffers change in each pass."""

    def __init__(self, input_shape, num_classes):
        super().__init__(input_shape, num_classes)
        self.layer = nn.utils.parametrizations.spectral_norm(self.layer)


class Centred(Net):
    """Looks at a whole micro-batch."""

    def forward(self, images):
        outputs = super().forward(images)
        return outputs - outputs.mean(0)


class Counting(Net):
    calls = 0

    def forward(self, images):
        self.calls += self.training
        return super().forward(images) / (1 + self.calls / 100)


class Dropping(Net):
    def forward(self, images):
        return functional.dropout(super().forward(images), 0.5, self.training)


@pytest.mark.parametrize(
    ("model", "lacking"),
    [
        (Net, []),
        (Spectral, ["additive loss"]),
        (Centred, ["additive loss"]),
        (Counting, ["additive loss", "whole checkpoint"]),
        (Dropping, ["keyed draws"]),
    ],
)
def test_a_model_of_ones_own_in_our_classifier_is_tried_like_a_module(grid, model, lacking):
    (config,) = grid("model=own", f"model._target_={__name__}.{model.__name__}")

    found = facts(config)

    assert held(found["found"]) == {name: name not in lacking for name in [*ALL, "seeds apply"]}
    assert facts(
        {**config, "model": {"_target_": "lightning_modules.models.small_cnn.SmallCNN"}}
    ) == {"num_train_examples": 61_440}
