"""What users do in their modules, callbacks and data: a table, each trained on several layouts.

`HABITS` maps a name to words of a command; modules and callbacks are found here by their names.
"""

import copy
import re

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, RandomSampler, WeightedRandomSampler


class Points(Dataset):
    def __init__(self, start, stop):
        generator = torch.Generator().manual_seed(start)
        self.x = torch.randn(stop - start, 6, generator=generator, dtype=torch.float64)
        self.y = self.x.sin().sum(1, keepdim=True)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {
            "x": self.x[index].to(torch.get_default_dtype()),
            "y": self.y[index].float(),
            "n": index,
        }


class Data(L.LightningDataModule):
    sampler = collate = None

    def __init__(self, batch_size=16):
        super().__init__()
        self.batch_size, self.train, self.val = batch_size, Points(0, 128), Points(128, 168)

    def train_dataloader(self):
        sampler = self.sampler and self.sampler(self.train)
        collate = type(self).collate
        return DataLoader(self.train, self.batch_size, sampler=sampler, collate_fn=collate)

    def val_dataloader(self):
        return DataLoader(self.val, self.batch_size)


class Base(L.LightningModule):
    """A mean over examples; SGD with momentum."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def errors(self, batch):
        x, y = batch["x"].to(self.dtype), batch["y"].to(self.dtype)
        return (self.net(x) - y).square()

    def training_step(self, batch, batch_idx):
        return self.errors(batch).mean()

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", self.errors(batch).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)


HABITS = {}


def habit(name, *words, base=Base, data="Data", **methods):
    """Add a module with other methods, and the words that name it."""
    kind = f"Habit{re.sub(r'[^A-Za-z0-9]', '', name.title())}"
    globals()[kind] = type(kind, (base,), {**methods, "__module__": __name__})
    HABITS[name] = [f"module._target_=habits.{kind}", f"data._target_=habits.{data}", *words]


def scaled(factor):
    """A step whose loss is multiplied by what a function of module, batch and batch_idx gives."""
    return lambda self, batch, batch_idx: self.errors(batch).mean() * factor(self, batch, batch_idx)


def after_step(then):
    """A hook after each micro-batch."""
    return lambda self, outputs, batch, batch_idx: then(self, batch_idx)


def optimizer(make, schedule=None, **how):
    def configure(self):
        made = make(self.parameters())
        if schedule is None:
            return made
        return [made], [{"scheduler": schedule(made), **how}]

    return configure


@torch.no_grad()
def clip_weights(self, _):
    for p in self.parameters():
        p.clamp_(-0.3, 0.3)


@torch.no_grad()
def noise_weights(self, _):
    for p in self.parameters():
        p.add_(torch.randn_like(p), alpha=0.01)


@torch.no_grad()
def shrink(self, _):
    for p in self.parameters():
        p.mul_(0.999)


def set_rate(rate):
    def hook(self, batch, batch_idx):
        for group in self.optimizers().param_groups:
            group["lr"] = rate(self, batch_idx)

    return hook


def with_layers(*more):
    def __init__(self):
        Base.__init__(self)
        self.net = nn.Sequential(nn.Linear(6, 8), *(make() for make in more), nn.Linear(8, 1))

    return __init__


def every(number, then):
    return lambda self, batch, batch_idx: (
        self.errors(batch).mean() * (then if batch_idx % number == 0 else 1.0)
    )


# losses
habit("plain")
habit("sum", training_step=lambda s, b, i: s.errors(b).sum() / 20)
habit("mean of squares in a dictionary", training_step=lambda s, b, i: {"loss": s.errors(b).mean()})
habit(
    "divided by accumulation",
    training_step=scaled(lambda s, b, i: 1 / s.trainer.accumulate_grad_batches),
)
habit("times the world size", training_step=scaled(lambda s, b, i: s.trainer.world_size))
habit("by rank", training_step=scaled(lambda s, b, i: 1 + s.trainer.global_rank))
habit("by batch idx", training_step=scaled(lambda s, b, i: 1 + i / 100))
habit("by global step", training_step=scaled(lambda s, b, i: 1 + s.global_step / 100))
habit("by epoch", training_step=scaled(lambda s, b, i: 1 + s.current_epoch / 10))
habit(
    "by the share of the epoch",
    training_step=scaled(lambda s, b, i: 1 + i / s.trainer.num_training_batches),
)
habit(
    "by the share of the training",
    training_step=scaled(lambda s, b, i: 1 + s.global_step / s.trainer.estimated_stepping_batches),
)
habit("by the length of the batch", training_step=scaled(lambda s, b, i: len(b["x"]) / 8))
habit("every tenth batch", training_step=every(10, 2.0))
habit("every fourth batch", training_step=every(4, 0.5))
habit("every second batch is zero", training_step=every(2, 0.0))
habit("from the fifth step", training_step=scaled(lambda s, b, i: 1 + (s.global_step > 5)))
habit("from the twentieth batch", training_step=scaled(lambda s, b, i: 1 + (i > 20)))
habit(
    "contrastive",
    training_step=lambda s, b, i: F.cross_entropy(
        (v := s.net[0](b["x"].to(s.dtype))) @ v.T, torch.arange(len(v))
    ),
)
habit(
    "variance of outputs",
    training_step=lambda s, b, i: s.errors(b).mean() + s.net(b["x"].to(s.dtype)).var(),
)
habit(
    "hardest half",
    training_step=lambda s, b, i: s.errors(b).flatten().topk(max(1, len(b["x"]) // 2))[0].mean(),
)
habit("largest", training_step=lambda s, b, i: s.errors(b).max())
habit("root of the mean", training_step=lambda s, b, i: s.errors(b).mean().sqrt())
habit("above a threshold", training_step=lambda s, b, i: (e := s.errors(b))[e > 0.1].mean())
habit(
    "weighted by label",
    training_step=lambda s, b, i: (
        (s.errors(b) * (w := b["y"].to(s.dtype).abs() + 0.1)).sum() / w.sum()
    ),
)
habit(
    "weights that do not sum",
    training_step=lambda s, b, i: (s.errors(b) * b["y"].to(s.dtype).abs()).mean(),
)
habit(
    "penalty",
    training_step=lambda s, b, i: (
        s.errors(b).mean() + 0.01 * sum(p.square().sum() for p in s.parameters())
    ),
)
habit(
    "gathered",
    training_step=lambda s, b, i: (
        (s.errors(b) - s.all_gather(s.errors(b).detach()).mean()).square().mean()
    ),
)
habit(
    "huber",
    training_step=lambda s, b, i: F.smooth_l1_loss(s.net(b["x"].to(s.dtype)), b["y"].to(s.dtype)),
)
habit(
    "normalised targets",
    training_step=lambda s, b, i: (
        (s.net(b["x"].to(s.dtype)) - (y := b["y"].to(s.dtype)) / y.std()).square().mean()
    ),
)
habit(
    "standardised inputs",
    training_step=lambda s, b, i: s.errors(
        {**b, "x": (b["x"] - b["x"].mean(0)) / (b["x"].std(0) + 1)}
    ).mean(),
)
habit(
    "mixup in the step",
    training_step=lambda s, b, i: s.errors(
        {"x": (b["x"] + b["x"].flip(0)) / 2, "y": (b["y"] + b["y"].flip(0)) / 2}
    ).mean(),
)
habit(
    "gradient penalty",
    training_step=lambda s, b, i: (
        s.errors(b).mean()
        + torch.autograd.grad(
            s.net(x := b["x"].to(s.dtype).requires_grad_()).sum(), x, create_graph=True
        )[0]
        .square()
        .mean()
    ),
)

# draws
habit(
    "noise on inputs",
    training_step=lambda s, b, i: s.errors(
        {**b, "x": b["x"] + 0.1 * torch.randn_like(b["x"])}
    ).mean(),
)
habit("dropout layer", __init__=with_layers(nn.Tanh, nn.Dropout))
habit(
    "functional dropout",
    training_step=lambda s, b, i: s.errors({**b, "x": F.dropout(b["x"], 0.5, s.training)}).mean(),
)
habit("feature dropout", __init__=with_layers(nn.AlphaDropout))
habit("random step size", training_step=scaled(lambda s, b, i: torch.rand(())))

# hooks
habit("clipped weights", on_train_batch_end=after_step(clip_weights))
habit("noised weights", on_train_batch_end=after_step(noise_weights))
habit("shrunk weights", on_train_batch_end=after_step(shrink))
habit("rate by batch idx", on_train_batch_start=set_rate(lambda s, i: 0.02 / (1 + i)))
habit(
    "rate by share",
    on_train_batch_start=set_rate(lambda s, i: 0.02 * (1 - i / s.trainer.num_training_batches)),
)
habit("rate by global step", on_train_batch_start=set_rate(lambda s, i: 0.02 / (1 + s.global_step)))
habit(
    "rate by epoch",
    on_train_epoch_start=lambda s: (
        [g.update(lr=0.02 / (1 + s.current_epoch)) for g in s.optimizers().param_groups] and None
    ),
)
habit(
    "gradient halved after backward",
    on_after_backward=lambda s: [p.grad.mul_(0.5) for p in s.parameters()] and None,
)
habit(
    "gradient clipped after backward",
    on_after_backward=lambda s: nn.utils.clip_grad_norm_(s.parameters(), 0.1) and None,
)
habit(
    "gradient clipped before the step",
    on_before_optimizer_step=lambda s, o: nn.utils.clip_grad_norm_(s.parameters(), 0.1) and None,
)
habit(
    "gradient noise",
    on_before_optimizer_step=lambda s, o: (
        [p.grad.add_(torch.randn_like(p), alpha=0.01) for p in s.parameters()] and None
    ),
)
habit(
    "gradient sign before the step",
    on_before_optimizer_step=lambda s, o: [p.grad.sign_() for p in s.parameters()] and None,
)
habit(
    "centred gradient after backward",
    on_after_backward=lambda s: [p.grad.sub_(p.grad.mean()) for p in s.parameters()] and None,
)
habit("loss scaled in backward", backward=lambda s, loss: (loss * 2).backward())
habit("frozen first layer", on_fit_start=lambda s: s.net[0].requires_grad_(False) and None)
habit("batch changed on transfer", on_after_batch_transfer=lambda s, b, i: {**b, "x": b["x"] * 2})
habit(
    "batch centred on transfer",
    on_after_batch_transfer=lambda s, b, i: {**b, "x": b["x"] - b["x"].mean(0)},
)
habit("step skipped by idx", training_step=lambda s, b, i: s.errors(b).mean() * float(i != 3))


# state
def with_buffer(then):
    def __init__(self):
        Base.__init__(self)
        self.register_buffer("kept", torch.zeros(6))
        self.seen, self.slow = 0.0, copy.deepcopy(self.net).requires_grad_(False)

    return {"__init__": __init__, "training_step": then}


def follow_inputs(self, batch, batch_idx):
    self.kept.lerp_(batch["x"].to(self.dtype).mean(0), 0.1)
    return self.errors({**batch, "x": batch["x"] - self.kept}).mean()


def count_batches(self, batch, batch_idx):
    self.seen += 1
    return self.errors(batch).mean() / (1 + self.seen / 100)


def remember_loss(self, batch, batch_idx):
    loss = self.errors(batch).mean()
    self.seen = 0.9 * self.seen + 0.1 * float(loss)
    return loss / (1 + self.seen)


def teach(self, batch, batch_idx):
    x = batch["x"].to(self.dtype)
    return self.errors(batch).mean() + (self.net(x) - self.slow(x)).square().mean()


@torch.no_grad()
def move_slow(self, *_):
    for slow, fast in zip(self.slow.parameters(), self.net.parameters(), strict=True):
        slow.lerp_(fast, 0.1)


def move_at_first(self, batch, batch_idx):
    if batch_idx % self.trainer.accumulate_grad_batches == 0:
        move_slow(self)


habit("running mean of inputs", **with_buffer(follow_inputs))
habit("count of micro-batches", **with_buffer(count_batches))
habit("running mean of losses", **with_buffer(remember_loss))
habit("teacher after each batch", **with_buffer(teach), on_train_batch_end=move_slow)
habit(  # which Lightning calls after the forward pass of a step's first micro-batch
    "teacher before gradients are zeroed", **with_buffer(teach), on_before_zero_grad=move_slow
)
habit("teacher before each step", **with_buffer(teach), on_train_batch_start=move_at_first)
habit("teacher after each epoch", **with_buffer(teach), on_train_epoch_end=move_slow)

# layers
habit("layer norm", __init__=with_layers(lambda: nn.LayerNorm(8)))
habit("batch norm", __init__=with_layers(lambda: nn.BatchNorm1d(8)))
habit("batch norm with a span", "bn_span=2", __init__=with_layers(lambda: nn.BatchNorm1d(8)))
habit("sync batch norm", __init__=with_layers(lambda: nn.SyncBatchNorm(8)))
habit("group norm", __init__=with_layers(lambda: nn.GroupNorm(2, 8)))
habit(
    "spectral norm",
    __init__=with_layers(lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))),
)
habit(
    "weight norm",
    __init__=with_layers(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))),
)


class Centre(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Counter(nn.Module):
    calls = 0

    def forward(self, x):
        self.calls += self.training
        return x / (1 + self.calls / 50)


habit("centred activations", __init__=with_layers(Centre))
habit("counting layer", __init__=with_layers(Counter))


def make_tied(self):
    Base.__init__(self)
    self.net = nn.Sequential(*(nn.Linear(6 if i == 0 else 8, 8) for i in range(4)), self.net[2])
    self.net[2].weight = self.net[1].weight


def make_late(self):
    self.net = getattr(self, "net", None) or Base().net


habit("tied weights", __init__=make_tied)
habit("late layers", __init__=L.LightningModule.__init__, configure_model=make_late)

# optimizers and schedules
O = torch.optim
S = O.lr_scheduler
habit("adam", configure_optimizers=optimizer(lambda p: O.Adam(p, 0.01)))
habit("adamw", configure_optimizers=optimizer(lambda p: O.AdamW(p, 0.01)))
habit("rmsprop", configure_optimizers=optimizer(lambda p: O.RMSprop(p, 0.005)))
habit(
    "one cycle",
    configure_optimizers=lambda s: (
        [o := O.SGD(s.parameters(), 0.02)],
        [
            {
                "scheduler": S.OneCycleLR(o, 0.02, s.trainer.estimated_stepping_batches + 1),
                "interval": "step",
            }
        ],
    ),
)
habit(
    "cosine by epoch",
    configure_optimizers=optimizer(lambda p: O.SGD(p, 0.02), lambda o: S.CosineAnnealingLR(o, 10)),
)
habit(
    "step by step",
    configure_optimizers=optimizer(
        lambda p: O.SGD(p, 0.02), lambda o: S.StepLR(o, 3, 0.5), interval="step"
    ),
)
habit(
    "every second step",
    configure_optimizers=optimizer(
        lambda p: O.SGD(p, 0.02), lambda o: S.ExponentialLR(o, 0.9), interval="step", frequency=2
    ),
)
habit(
    "rates by world size",
    configure_optimizers=lambda s: O.SGD(s.parameters(), 0.01 * s.trainer.world_size),
)
habit(
    "rates by batches",
    configure_optimizers=lambda s: O.SGD(s.parameters(), 0.16 / s.trainer.num_training_batches),
)
habit(
    "plateau of validation",
    configure_optimizers=optimizer(
        lambda p: O.SGD(p, 0.02), lambda o: S.ReduceLROnPlateau(o, patience=0), monitor="val/loss"
    ),
)

# data
for name, make in {
    "random sampler": RandomSampler,
    "weighted sampler": lambda d: WeightedRandomSampler(torch.arange(1.0, 129.0), 128),
    "sampler with replacement": lambda d: RandomSampler(d, replacement=True, num_samples=128),
}.items():
    kind = name.title().replace(" ", "") + "Data"
    globals()[kind] = type(kind, (Data,), {"sampler": staticmethod(make), "__module__": __name__})
    habit(name, data=kind)


def mix(examples):
    batch = torch.utils.data.default_collate(examples)
    return {**batch, "x": batch["x"] + 0.1 * batch["x"].flip(0)}


class MixData(Data):
    collate = staticmethod(mix)


habit("mixing collate", data="MixData")


# callbacks
class Average(L.Callback):
    """Swapped in for validation, and moved after each micro-batch, as in many repositories."""

    def on_train_start(self, trainer, module):
        self.slow = AveragedModel(module.net, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def on_train_batch_end(self, trainer, module, *_):
        self.slow.update_parameters(module.net)

    def on_validation_start(self, trainer, module):
        self.kept = copy.deepcopy(module.net.state_dict())
        if hasattr(self, "slow"):
            module.net.load_state_dict(self.slow.module.state_dict())

    def on_validation_end(self, trainer, module):
        module.net.load_state_dict(self.kept)


class StepAverage(Average):
    """Moved once per step: right on every layout."""

    steps = 0

    def on_train_batch_end(self, trainer, module, *_):
        if trainer.global_step > self.steps:
            self.steps = trainer.global_step
            self.slow.update_parameters(module.net)


class Clip(L.Callback):
    def on_train_batch_end(self, trainer, module, *_):
        clip_weights(module, 0)


class Rates(L.Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        for group in trainer.optimizers[0].param_groups:
            group["lr"] = 0.02 / (1 + batch_idx)


class HalvesGradients(L.Callback):
    def on_after_backward(self, trainer, module):
        for p in module.parameters():
            p.grad.mul_(0.5)


class Watches(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.last = float(outputs["loss"])


for name in ("Average", "StepAverage", "Clip", "Rates", "HalvesGradients", "Watches"):
    habit(f"callback {name}", f"+trainer.callbacks=[{{_target_: habits.{name}}}]")
habit("callbacks of the module", configure_callbacks=lambda s: [Rates()])
