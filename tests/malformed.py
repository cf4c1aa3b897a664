"""Malformed settings: what people, scripts and shells write by mistake, for each key of conf/."""

import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Any

NESTED: Any = []
for _ in range(200):
    NESTED = [NESTED]

#: No value of these is right for every key, and most are right for none.
VALUES: tuple[Any, ...] = (
    None, True, False,
    0, 1, 2, 7, -1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**40, 10**400,
    0.0, 0.5, -0.5, 2.5, 1e-320, 1e-30, 1e30, 1e308, float("nan"), float("inf"), float("-inf"),
    "", " ", "abc", "1", "-1", "nan", "auto", "none", "NULL", "0x10", "1e5", "a,b", "a b", "a=b",
    "é", "日本語", "🦊", "\u202e", "\udcff", "a\x1b[31mb\x07", "a\nb", "a\x00b", "x" * 100_000,
    "../..", "/dev/null", "/dev/null/x", "%s", "{folder}", "$HOME", "~", "*", "[", "{{scripts}}",
    [], [1], [-1], [2, 1], [None], [float("nan")], ["a"], [[1]], [{}], [2**63], [0.9, "b"], NESTED,
    list(range(3000)), {}, {"a": 1}, {"": 1}, {1: 2}, {"name": None}, {"name": "x"}, {"name": []},
    {"_target_": None}, {"_target_": 1}, {"name": "x", "_target_": "math.pi"},
)  # fmt: skip

#: Dotted paths that lead nowhere, or to what must not be called by accident.
TARGETS = (
    None, 1, [], {}, "", " ", ".", "..", ".a", "a.", "a..b", "a b", "a-b.c", "1.2", "é.è",
    "a\x00b", "\udcff.a", "x" * 10_000, "os." + "x" * 300, "nosuch", "nosuch.package", "torch",
    "torch.nosuch", "os", "os.system", "os._exit", "os.abort", "sys.exit", "math.pi", "math.sqrt",
    "math.nosuch", "builtins.exec", "builtins.print", "builtins.object", "builtins.breakpoint",
    "posix.abort", "pydoc.pipepager", "subprocess.run", "json.dumps",
    "collections.OrderedDict", "canary", "canary.sings", "canary.raises", "canary.leaves",
    "canary.nosuch",
)  # fmt: skip

#: Choices that are valid together, so that a refusal is about what was changed.
BASES = (
    (),
    ("optimizer=lamb", "lr_rule=sqrt", "schedule=cosine", "data=noise", "comm_hook=bf16"),
    ("optimizer=lars", "lr_rule=legw", "schedule=polynomial", "logger=csv", "warmup=0.1"),
    ("optimizer=vr_sgd", "lr_rule=linear_capped", "lr_rule.max_lr=100", "schedule=constant"),
    ("optimizer=vr_lamb", "lr_rule=power", "comm_hook=powersgd", "model=resnet8"),
    ("optimizer=adamw", "lr_rule=saturating", "lr_rule.noise_scale=500", "perturbation=sam"),
    ("optimizer=lans", "lr_rule=surge", "lr_rule.noise_scale=500", "model=resnet18"),
    ("lr_rule=adascale", "comm_hook=hierarchical", "comm_hook.ranks_per_node=1"),
    ("schedule=growing_batch", "schedule.milestones=[10]", "schedule.max_batch=15360", "warmup=0"),
    ("comm_hook=post_local_sgd", "comm_hook.workers=1", "comm_hook.start_epoch=1"),
    ("data=synthetic", "model=torchvision", "model.name=resnet18", "lr_rule=none"),
    ("module=own", "module._target_=pytorch_lightning.LightningModule", "data=own",
     "data._target_=pytorch_lightning.LightningDataModule", "metric_mode=max"),
)  # fmt: skip

#: Keys that conf/ does not have, by the index of a base to which they are added.
ADDED = {
    ("new",): 0, ("data", "name"): 0, ("data", "root"): 0, ("model", "name"): 0,
    ("optimizer", "lr"): 0, ("optimizer", "nosuch"): 0, ("lr_rule", "warmup_exponent"): 0,
    ("lr_rule", "measured_in"): 5, ("lr_rule", "nosuch"): 0, ("lr_rule", "_target_"): 0,
    ("schedule", "_target_"): 3, ("trainer", "callbacks"): 0, ("trainer", "devices"): 0,
    ("trainer", "nosuch"): 0, ("trainer", "log_every_n_steps"): 0, ("logger", "nosuch"): 1,
}  # fmt: skip


def leaves(node: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of each key of a config, groups included."""
    for key, value in node.items():
        yield (*path, key)
        if isinstance(value, Mapping):
            yield from leaves(value, (*path, key))


#: The index of a base, the path of a key in it, and the value to put there.
Case = tuple[int, tuple[str, ...], Any]


def changed(config: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A config with one key set, whatever stood there."""
    first, *rest = path
    if not rest:
        return {**config, first: value}
    group = config.get(first)
    inner = group if isinstance(group, dict) else {}
    return {**config, first: changed(inner, tuple(rest), value)}


def cases(bases: list[dict[str, Any]]) -> list[Case]:
    """Every key with every value, in an order that is always the same."""
    seen: dict[tuple[Any, ...], int] = {}
    for index, base in enumerate(bases):
        for path in leaves(base):
            group = base[path[0]]
            choice = group.get("name", group.get("_target_")) if isinstance(group, dict) else None
            seen.setdefault((path, choice), index)
    seen |= {(path, None): index for path, index in ADDED.items()}
    found: list[Case] = []
    for (path, _), index in seen.items():
        values = TARGETS if path[-1] == "_target_" else VALUES
        found += zip(itertools.repeat(index), itertools.repeat(path), values)
    random.Random(16).shuffle(found)
    return found
