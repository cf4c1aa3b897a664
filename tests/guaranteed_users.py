"""Modules and data that break each guarantee in their own way, and some that break none."""

import copy
import random
import time

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, default_collate


class Items(Dataset):
    """Vectors with noise from a global generator, or from one of their own."""

    def __init__(self, own=None):
        self.own = own

    def __len__(self):
        return 128

    def __getitem__(self, index):
        noise = self.own.random() if self.own else random.random() + np.random.rand()  # noqa: NPY002
        return torch.linspace(0, 1 + index, 4) + noise + torch.rand(1)


class Line(L.LightningModule):
    """A mean over examples, with keyed dropout and BatchNorm; nothing is lost."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), *layers, nn.Linear(6, 1)
        )
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("threshold", torch.tensor(torch.nan))  # not set yet
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


class Kept(Items):
    """Draws an item once."""

    def __init__(self):
        super().__init__()
        self.kept = {}

    def __getitem__(self, index):
        if index not in self.kept:
            self.kept[index] = super().__getitem__(index)
        return self.kept[index]


class Data(L.LightningDataModule):
    items, collate = Items, None

    def __init__(self, batch_size=4):
        super().__init__()
        self.size = batch_size

    def setup(self, stage):
        self.train = self.items()

    def train_dataloader(self):
        collate = type(self).collate
        return DataLoader(self.train, batch_size=self.size, collate_fn=collate, shuffle=True)

    def val_dataloader(self):
        collate = type(self).collate
        return DataLoader(Items(), batch_size=self.size, collate_fn=collate)


class OwnGenerator(Data):
    def setup(self, stage):
        self.train = Items(random.Random(0))


class KeptData(Data):
    items = Kept


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


class MixedData(Data):
    collate = staticmethod(mixed)


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


class Cycling(Line):
    """OneCycle writes the first beta."""

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1, weight_decay=0.2)
        one_cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 120)
        return [optimizer], [{"scheduler": one_cycle, "interval": "step"}]


class WithItsOptimizer(Line):
    """Gets optimizer and scheduler when it is made, as routines of torch-uncertainty do."""

    def __init__(self):
        super().__init__()
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [5])

    def configure_optimizers(self):
        return [self.optimizer], [self.scheduler]


class InFloat32(Line):
    """Computes its loss in float32, as causal models of Hugging Face do."""

    def training_step(self, batch):
        return self.layers(batch).float().square().mean()


class SummedInFloat32(Line):
    def training_step(self, batch):
        return self.layers(batch).float().square().sum()


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


class CountingNet(Net):
    calls = 0

    def forward(self, images):
        self.calls += self.training
        return super().forward(images) / (1 + self.calls / 100)


class Dropping(Net):
    def forward(self, images):
        return functional.dropout(super().forward(images), 0.5, self.training)


class Low(Line):
    """Its weights have 16 bits, whatever the precision of the Trainer."""

    def __init__(self):
        super().__init__()
        self.to(torch.bfloat16)

    def training_step(self, batch):
        return super().training_step(batch.to(self.layers[0].weight.dtype))


class Few(Items):
    def __len__(self):
        return 3


class FewData(Data):
    items = Few


class Tokens(Line):
    """The mean over what is above 1."""

    def training_step(self, batch):
        kept = batch > 1
        return (self.layers(batch) * kept).sum() / kept.sum()


def above(batch):
    return (batch > 1).sum().item()


class Rising(Items):
    def __getitem__(self, index):
        return torch.linspace(0, 1 + index, 4)


class RisingData(Data):
    items = Rising


class SeededInSetup(Line):
    """Makes a layer after it has seeded the generators."""

    def setup(self, stage):
        self.late()

    def late(self):
        L.seed_everything(3)
        self.head = nn.Linear(4, 1)

    def training_step(self, batch):
        return super().training_step(batch) + self.head(batch).square().mean()


class SeededInConfigure(SeededInSetup):
    def setup(self, stage):
        pass

    def configure_model(self):
        self.late()


class Sleeping(Line):
    def training_step(self, batch):
        time.sleep(30)
        raise RuntimeError("slept")


class Lazy(Line):
    def __init__(self):
        super().__init__()
        self.layers[0] = nn.LazyLinear(6)


class Momentless(Line):
    def __init__(self):
        super().__init__()
        self.layers[1] = nn.BatchNorm1d(6, momentum=None)


class Unfreezing(Line):
    def __init__(self):
        super().__init__()
        self.layers[0].requires_grad_(False)

    def on_train_epoch_start(self):
        self.layers[0].requires_grad_(self.current_epoch > 0)
