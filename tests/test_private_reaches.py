"""Private names and texts of other libraries that we rely on: all are listed, and still there."""

import ast
import inspect
import pkgutil
import re
import shutil
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from private_reaches import ALLOCATOR_TEXT, ATTRIBUTES, ELSEWHERE, MARKS, NAMES, TEXTS
from pytorch_lightning.demos.boring_classes import BoringModel

from sweeper import CONFIG_FOLDER
from sweeper.upstream.hydras import VERSION_BASE

ROOT = Path(__file__).parents[1]
PACKAGES = ("sweeper", "lightning_modules", "analysis", "hydra_plugins")


def spelled(name: str) -> str:
    """What our file spells of a name."""
    return MARKS.get(name) or name.rpartition(":")[2].rpartition(".")[2]


def listed(table: dict[str, dict[str, str]]) -> list[str]:
    return [name for names in table.values() for name in names]


@pytest.mark.parametrize("name", listed(NAMES))
def test_a_private_name_is_there(name):
    if name.startswith("timm"):
        pytest.importorskip("timm", reason="timm is not installed")

    assert pkgutil.resolve_name(name) is not None


@pytest.mark.parametrize("name", listed(ATTRIBUTES))
def test_a_private_attribute_is_there(name):
    owner, attribute = pkgutil.resolve_name(name.rpartition(".")[0]), spelled(name)

    is_set = re.search(rf"(self\.)?{attribute}(: .*)? = ", inspect.getsource(owner))
    assert isinstance(getattr(owner, attribute, None), property) or is_set


def test_the_list_says_where_a_reach_is_used():
    uses = [(file, spelled(name)) for t in (NAMES, ATTRIBUTES) for file in t for name in t[file]]
    uses += [(file, text) for file, texts in TEXTS.items() for text in texts]

    assert [use for use in uses if use[1] not in (ROOT / use[0]).read_text()] == []


def product_files() -> dict[str, ast.Module]:
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in files}


def names_of_ours(trees: Iterable[ast.Module]) -> set[str]:
    """What the product defines: functions, classes, fields, attributes of self."""
    ours: set[str] = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            ours.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            ours.add(node.id)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls"):
            ours.add(node.attr)
    return ours


def is_namespace_of_other(node: ast.AST) -> bool:
    """`vars(x)` or `x.__dict__` of anything but self."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "vars":
        return ast.unparse(node.args[0]) != "self" if node.args else False
    return isinstance(node, ast.Attribute) and node.attr == "__dict__"


def is_reach(node: ast.AST, ours: set[str]) -> bool:  # noqa: PLR0911
    """Whether code reaches into what is not the product's."""
    match node:
        case ast.Attribute(attr=name) if re.match("_[a-zA-Z]", name):
            return name not in ours and ast.unparse(node) != "os._exit"
        case ast.ImportFrom(module=module, names=names):
            parts = [*(module or "").split("."), *(alias.name for alias in names)]
            is_others = not (module or "").startswith(PACKAGES)
            return is_others and any(re.match("_[a-z]", part) for part in parts)
        case ast.Call(func=ast.Attribute(value=value, attr="update" | "pop" | "setdefault")):
            return is_namespace_of_other(value)
        case ast.Call(func=function, args=[target, *_]):
            return (
                ast.unparse(function) in ("setattr", "delattr", "object.__setattr__")
                and ast.unparse(target) != "self"
            )
        case ast.Subscript(value=value, ctx=ast.Store()):
            return is_namespace_of_other(value)
        case ast.Attribute(attr=name):
            return name in NAMED
        case _:
            return False


def reaches_in(tree: ast.Module, ours: set[str]) -> list[str]:
    return [ast.unparse(node) for node in ast.walk(tree) if is_reach(node, ours)]


#: Parts of other libraries that are private by convention only.
NAMED = (
    "optim_progress", "batch_progress", "val_check_batch", "error_dict", "p_memory_dict",
    "cls_to_become", "ensure_running", "cumulated_batch_size",
)  # fmt: skip


def test_no_reach_is_outside_of_the_room():
    trees = product_files()
    ours = names_of_ours(trees.values())

    found = {
        file: reaches_in(tree, ours)
        for file, tree in trees.items()
        if not file.startswith("sweeper/upstream/") and file not in ELSEWHERE
    }

    assert {file: reaches for file, reaches in found.items() if reaches} == {}


@pytest.mark.parametrize(
    "code",
    [
        "trainer._results",
        "from torch._subclasses import fake_tensor",
        "setattr(module, 'log', print)",
        "object.__setattr__(info, 'dataset', 1)",
        "vars(trainer)['callbacks'] = []",
        "layer.__dict__.update(a=1)",
        "trainer.val_check_batch = 1",
    ],
)
def test_a_reach_is_found(code):
    assert reaches_in(ast.parse(code), set())


def test_every_private_name_in_the_room_is_listed():
    names = listed(NAMES) + listed(ATTRIBUTES)
    known = {part for name in names for part in re.split("[.:]", name)}
    trees = product_files()
    ours = names_of_ours(trees.values())
    room = [tree for file, tree in trees.items() if file.startswith("sweeper/upstream/")]

    read = {
        node.attr
        for tree in room
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and re.match("_[a-zA-Z]", node.attr)
    }

    assert read - ours - known == set()


@pytest.mark.parametrize(
    ("override", "texts"),
    [
        ("batc=1", ["Could not override 'batc'"]),
        ("lr_rule=sqr", ["Could not find 'lr_rule/sqr'", "Available options in"]),
    ],
)
def test_hydra_refuses_in_the_words_that_we_replace(override, texts):
    with (
        initialize_config_dir(**VERSION_BASE, config_dir=str(CONFIG_FOLDER)),
        pytest.raises(HydraException) as refused,
    ):
        compose("config", [override])

    assert [text for text in texts if text not in str(refused.value)] == []


def test_torchs_cpu_allocator_says_its_name():
    with pytest.raises(RuntimeError, match=ALLOCATOR_TEXT):
        torch.empty(2**50)


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_of_lightning_counts_micro_batches_where_we_count_them_anew(tmp_path):
    trainer = pl.Trainer(
        default_root_dir=tmp_path, accelerator="cpu", max_steps=2, limit_train_batches=4,
        limit_val_batches=0, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(BoringModel())
    trainer.save_checkpoint(tmp_path / "boring.ckpt")

    saved = torch.load(tmp_path / "boring.ckpt", weights_only=False)

    progress = saved["loops"]["fit_loop"]["epoch_loop.batch_progress"]
    assert progress["current"] == {"ready": 2, "started": 2, "processed": 2, "completed": 2}
    assert len(saved["optimizer_states"]) == 1


def test_ddp_can_be_kept_from_sending_buffers_at_each_step():
    known = inspect.signature(torch.nn.parallel.DistributedDataParallel.__init__).parameters

    assert {"forward_sync_buffers", "broadcast_buffers"} & set(known)


@pytest.mark.parametrize("text", TEXTS["sweeper/launch/slurm/commands.py"])
def test_slurm_notes_in_a_jobs_log_why_it_ended(text):
    assert text in texts_in(program("slurmstepd"))


def program(name: str) -> Path:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found is None:
        pytest.skip(f"SLURM's {name} is not installed here: see .ci/install-slurm")
    return Path(found)


@cache
def texts_in(binary: Path) -> str:
    return binary.read_bytes().decode("ascii", errors="replace")
