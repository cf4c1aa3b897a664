"""What a plan must know of a user's own module and data, found out once and remembered."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from sweeper import import_own
from sweeper.launch.ask_process import Answers, Question, ask_process
from sweeper.launch.fork_server import ForkServerDied, open_fork_server
from sweeper.launch.local.preflight import count_data, has_data
from sweeper.planning.class_checks import check_names
from sweeper.spec.config import OWN_OPTIMIZER, Component, is_ours, run_config
from sweeper.spec.guarantee_names import (
    GUARANTEES,
    RESUMES,
    SAME,
    SEEDS_APPLY,
    held,
)
from sweeper.spec.identity import targets
from sweeper.spec.method_checks import check_division
from sweeper.spec.schedules import GROWING
from sweeper.spec.sentences import read_model, several
from sweeper.spec.trainer_settings import changing_callbacks, check_trainer
from sweeper.spec.values import Count, Settings, Text
from sweeper.store.publish import publish_json, read_as, skip_if_forbidden
from sweeper.store.user_code import code_hash, user_code

Config = dict[str, Any]

#: Keys that facts about a user's module depend on.
_READ = ("module", "data", "loss_items", "batch_unit")


class _Project(Settings, extra="ignore"):
    """The part of a config that is read here before the whole is validated."""

    module: Component
    data: Component
    model: Component | None = None


class _DataFacts(BaseModel, extra="allow"):
    """What is stored of data."""

    num_train_examples: Count
    is_iterable: bool = False
    most_ranks: Count = 1
    val_batch: Count = 1


class _Finding(BaseModel, extra="allow"):
    """Whether a guarantee holds."""

    holds: bool | None
    is_layouts: bool = False
    over: str = ""
    classes: list[Text] = []
    settings: list[dict[str, Any]] = []


class _Facts(_DataFacts):
    """What is stored of a user's module and its data."""

    has_batchnorm: bool
    is_automatic: bool
    found: dict[str, _Finding]


#: Examples that BatchNorm of a user's module normalises together, if nothing is said; it depends on
#: no other point of the grid.
_BN_SPAN = 32


def add_facts(configs: Iterable[Mapping[str, Any]], results: Path) -> Iterator[Config]:
    """Configs with the number of examples filled in, and what follows from the user's module.

    A rule's critical batch is filled in too, from the folder that it names.

    Args:
        configs: resolved; those of our classifier on data with a stated number of examples stay.
        results: the results folder, where facts are stored by config and version of the code.

    Raises:
        ValueError: if a value is wrong, the module or the data cannot be created, or the module
            lacks blocks that are asked for.
    """
    critical = dict[tuple[Any, ...], float]()
    measured = dict[tuple[Any, ...], dict[float, float]]()
    counted = count_examples(
        {
            **config,
            **_fill_critical_batch(config.get("lr_rule"), critical),
            **_fill_positions(config, measured),
        }
        for config in configs
    )
    asked = {_key(c): c for c in counted if _needs_facts(c["module"], c.get("model"), c["data"])}
    known: dict[str, Config] = {}
    for key, config in asked.items():
        check_config(config)
        if facts := _stored_facts(config, results):
            known[key] = facts
    unknown = [key for key in asked if key not in known]
    known |= zip(unknown, find_facts([asked[key] for key in unknown], results), strict=True)
    filled = list[Config]()
    for config in counted:
        is_asked = _needs_facts(config["module"], config.get("model"), config["data"])
        filled.append(fill_config(config, known[_key(config)]) if is_asked else config)
    _check_blocks(filled)
    yield from filled


#: Keys that ask for blocks of a module, and those that say which module.
_ASKING, _ASKED = ("fsdp_blocks", "checkpoint_activations"), ("module", "model")


def _check_blocks(configs: Iterable[Config]) -> None:
    """ValueError with a line for each way in which modules lack the blocks that are asked for."""
    asking = (config for config in configs if any(map(config.get, _ASKING)))
    asked = {str([*map(config.get, (*_ASKING, *_ASKED))]): config for config in asking}
    if not asked:
        return
    answers = _ask("blocks", [*asked.values()])
    if mistakes := dict.fromkeys(filter(None, answers.values)):
        raise ValueError("\n".join(mistakes))


def _fill_critical_batch(rule: Any, known: dict[tuple[Any, ...], float]) -> Config:
    """What replaces `lr_rule` if it is surge with `noise_scale=critical`: what tuned runs say.

    The number is part of the run's identity; the folder is not. `known` has it by folder and level.
    ValueError if the folder does not say it.
    """
    if not isinstance(rule, dict) or rule.get("noise_scale") != "critical":
        return {}
    source = folder, level = rule.get("measured_in"), rule.get("measured_at")
    if rule["name"] == "surge" and source not in known:
        import_own("analysis")
        from analysis.tuning.critical import tuned_critical_batch  # pandas takes a second

        try:
            known[source] = tuned_critical_batch(Path(folder or "null"), level)
        except ValueError as error:
            msg = (
                "lr_rule.noise_scale=critical needs +lr_rule.measured_in=FOLDER, whose rates were "
                "tuned by hydra/sweeper=optuna at three batches or more; got "
                f"{folder or 'null'}: {error} Its target is lr_rule.measured_at."
            )
            raise ValueError(msg) from error
    return {"lr_rule": {**rule, "noise_scale": known.get(source, "critical")}}


def _fill_positions(
    config: Mapping[str, Any], known: dict[tuple[Any, ...], dict[float, float]]
) -> Config:
    """What replaces `schedule` if it warms up the batch by a measured critical batch.

    As with `_fill_critical_batch`, the numbers are part of the run's identity, and the folder not.
    `known` has them by folder and margin.
    """
    schedule, unit = config.get("schedule"), config.get("warmup_unit")
    if not isinstance(schedule, dict) or schedule.get("name") != "batch_warmup":
        return {}
    if schedule.get("critical_batch") != "measured" or schedule.get("positions"):
        return {}
    if unit not in (None, "epochs"):
        msg = (
            "warmup_unit must be epochs with schedule.critical_batch=measured, whose positions are "
            f"ends of epochs; got warmup_unit={unit}. Remove it, or give both lists."
        )
        raise ValueError(msg)
    source = folder, margin = schedule.get("measured_in"), schedule.get("margin")
    import_own("analysis")
    from analysis.tuning.critical import find_critical_batches

    try:
        if source not in known:
            known[source] = find_critical_batches(Path(folder or "null"), margin)
    except ValueError as error:
        msg = (
            "schedule.critical_batch=measured needs +schedule.measured_in=FOLDER, whose runs have "
            f"comparable branches (branch=RUN_ID@EPOCHS); got {folder or 'null'}: {error}"
        )
        raise ValueError(msg) from error
    positions, batches = list(known[source]), list(known[source].values())
    return {"schedule": {**schedule, "positions": positions, "critical_batch": batches}}


def check_config(config: Mapping[str, Any]) -> None:
    """Check all values of a config, and its classes, even if its examples are not counted yet.

    ValueError with a line for each wrong value.
    """
    read_model(_Project, config)
    settings = run_config({**config, "data": {"num_train_examples": 1, **config["data"]}})
    check_trainer(settings.trainer)  # before a trial, which has a Trainer of its own
    named = {key: config[key]["_target_"] for key in ("module", "data")}
    named["model"] = user_model(config["module"], config.get("model"))
    check_names((key, path, None) for key, path in named.items() if path)


def count_examples(configs: Iterable[Mapping[str, Any]]) -> list[Config]:
    """Configs with the null counts of our data sets filled in from disk, each counted once."""
    known: dict[str, Config] = {}
    found: list[Config] = []
    for config in configs:
        read_model(_Project, config)
        data = config["data"]
        if None in data.values() and is_ours(data["_target_"]):
            key = json.dumps(data, sort_keys=True)
            data = known[key] = known.get(key) or count_data(data)
        found.append({**config, "data": data})
    return found


def user_model(module: Config, model: Config | None) -> str:
    """The user's own model in our classifier, by its path; empty if there is none."""
    is_read = is_ours(module["_target_"])
    return model["_target_"] if is_read and model and not is_ours(model["_target_"]) else ""


def has_own_code(module: Config, model: Config | None) -> bool:
    """Whether the module is the user's, or the model in our classifier."""
    return not is_ours(module["_target_"]) or bool(user_model(module, model))


def _needs_facts(module: Config, model: Config | None, data: Config) -> bool:
    """Whether something must be made; a network only where its data are."""
    is_asked = not is_ours(module["_target_"]) or "num_train_examples" not in data
    return is_asked or (bool(user_model(module, model)) and has_data(data))


def fill_config(config: Config, facts: Mapping[str, Any]) -> Config:
    """A config with what is known of its module and data, in place.

    ValueError if they cannot be trained as the config says.
    """
    data = config["data"]
    _fill_counts(config, facts)
    if facts.get("is_iterable"):
        ranks, name = config["devices"] * config["num_nodes"], f"data._target_={data['_target_']}"
        check_division(ranks, facts.get("most_ranks", 1), name)
        config["data_order"] = "counted"
    if "val_batch" in facts:
        config["val_batch"] = facts["val_batch"]
    if not has_own_code(config["module"], config.get("model")):
        return config
    config["bn_span"] = choose_bn_span(config["bn_span"], facts)
    found = dict(facts["found"])
    has_ranks, has_span = config["devices"] * config["num_nodes"] > 1, config["bn_span"] != "micro"
    where = {"always": True, "ranks": has_ranks, "bn_span": has_span and config["bn_span"]}
    where["lengths"] = config.get("trunk")
    for why in (why for key, why in facts.get("refused", {}).items() if where[key]):
        raise ValueError(why)
    _check_trusted(config, found.get(RESUMES, {}).get("classes", ()))
    same = found.get(SAME, {})
    if _has_own_optimizer(config):
        config["own_settings"] = same.get("settings") or None
    if found.get(SEEDS_APPLY, {}).get("seed") not in (None, config["seed"]):
        found[SEEDS_APPLY] = {"holds": False}  # a number, not the run's seed
    bn_span, has_batchnorm = config["bn_span"], facts["has_batchnorm"]
    config["guarantees"] = held(found, has_batchnorm=has_batchnorm, bn_span=bn_span)
    if same.get("in_float32"):
        config["in_float32"] = True
    if same.get("is_layouts"):
        config["loss_span"] = "micro"
    if not facts["is_automatic"]:
        _check_manual(config)
    return config


def _fill_counts(config: Config, facts: Mapping[str, Any]) -> None:
    """Fill in what was counted of the data, in place; ValueError for tokens that were not."""
    data = config["data"]
    if config.get("batch_unit") == "tokens" and "epoch_tokens" not in facts:
        msg = (
            "batch_unit=tokens needs a data set with a length and indices, whose tokens are "
            f"counted; got data._target_={data['_target_']}. Give batches in examples."
        )
        raise ValueError(msg)
    if "num_train_examples" not in data:
        config["data"] = {**data, "num_train_examples": facts["num_train_examples"]}
    config |= {key: facts[key] for key in ("epoch_tokens", "longest_example") if key in facts}


def choose_bn_span(asked: int | str | None, facts: Mapping[str, Any]) -> int | str | None:
    """The examples that BatchNorm normalises together; None if there is no BatchNorm."""
    if not facts["has_batchnorm"]:
        return None
    if asked == "auto":
        return "micro" if "bn_span" in facts.get("refused", {}) else _BN_SPAN
    return asked


def _check_trusted(config: Config, classes: Iterable[str]) -> None:
    """ValueError if checkpoints will hold objects that a run could not be resumed with."""
    trusted = config.get("trusted_classes") or ()
    if lacking := sorted({*classes} - {*trusted}):
        msg = (
            "trusted_classes must name every class of the objects in a checkpoint, or no run could "
            f"be resumed; got module._target_={config['module']['_target_']}, which saves objects "
            f"of {len(lacking)} more. If you trust whoever can "
            "write to the results folder, write "
            f"'trusted_classes=[{','.join(sorted({*classes, *trusted}))}]'."
        )
        raise ValueError(msg)


def _check_manual(config: Config) -> None:
    """Make the micro-batch a rank's whole share, for a module that steps at every micro-batch.

    ValueError if that is not possible, or if a method needs Lightning to take the steps.
    """
    methods = {
        "perturbation": config["perturbation"]["name"] != "none",
        "noise_span": config["noise_span"] is not None,
        "lr_rule=adascale": config["lr_rule"].get("name") == "adascale",
        **{f"schedule={s}": config["schedule"].get("name") == s for s in GROWING},
        "optimizer.gradient_span": config["optimizer"].get("gradient_span") is not None,
        "gradient_clip": config["gradient_clip"] is not None,
        "a delay for each slice": isinstance(config["gradient_delay"], list),
        "loss_items": config["loss_items"] is not None,
        "reproducible": bool(config["reproducible"]),
        "comm_hook": config["comm_hook"]["name"] == "post_local_sgd",
    }
    if names := ", ".join(name for name, is_set in methods.items() if is_set):
        msg = (
            f"{names} cannot be used with automatic_optimization=False, where the module takes its "
            f"own optimizer steps; got module._target_={config['module']['_target_']}. "
            f"Remove {names}."
        )
        raise ValueError(msg)
    ranks = config["devices"] * config["num_nodes"]
    share, rest = divmod(config["batch"], ranks)
    if rest or config["micro_batch"] not in {"auto", share}:
        msg = (
            "micro_batch x ranks must equal batch with automatic_optimization=False, where every "
            f"micro-batch is a step; got batch={config['batch']}, {several(ranks, 'rank')}, "
            f"micro_batch={config['micro_batch']}. Leave micro_batch=auto with a batch that the "
            "ranks divide, or use more ranks."
        )
        raise ValueError(msg)
    config["micro_batch"] = share


def find_facts(configs: Sequence[Config], results: Path) -> list[dict[str, Any]]:
    """Determine the facts of each config's module and data in a separate process, and store them.

    ValueError if a module or its data cannot be created.
    """
    found = _ask_for_facts(configs) if configs else []
    for config, facts in zip(configs, found, strict=True):
        path = _path(config, results)
        with skip_if_forbidden():
            path.parent.mkdir(parents=True, exist_ok=True)
            publish_json(path, facts)
    return found


def _stored_facts(config: Config, results: Path) -> dict[str, Any] | None:
    """The stored facts for this module, data and code; None if there are none that can be read."""
    kind = _Facts if has_own_code(config["module"], config.get("model")) else _DataFacts
    facts = read_as(kind, _path(config, results))
    return facts and facts.model_dump(exclude_unset=True)


def _path(config: Config, results: Path) -> Path:
    code = code_hash(user_code(targets(config))) or ""
    name = hashlib.sha256(f"{_key(config)}{code}".encode()).hexdigest()[:12]
    return results / "facts" / f"{name}.json"


def _key(config: Config) -> str:
    """The part of a config that facts depend on, as text."""
    if not has_own_code(config["module"], config.get("model")):
        return json.dumps(config["data"], sort_keys=True)
    model = (
        ("model", "label_smoothing", "zero_init_last_norm")
        if user_model(config["module"], config.get("model"))
        else ()
    )
    read = {key: config[key] for key in (*_READ, *model) if config.get(key)}
    read["is_own"] = _has_own_optimizer(config)
    read["found"] = [*GUARANTEES, config["trial"]]
    if config.get("strategy") == "fsdp":  # which its two ranks have
        read["strategy"] = "fsdp"
    try:
        read["callbacks"] = changing_callbacks(config["trainer"].get("callbacks") or ())
        return json.dumps(read, sort_keys=True)
    except (AttributeError, TypeError):  # no group; keys that are not text, which cannot be sorted
        check_config(config)
        raise


def _has_own_optimizer(config: Config) -> bool:
    """Whether the module's own optimizer is used; what is no group is refused later."""
    optimizer = config["optimizer"]
    return isinstance(optimizer, Mapping) and optimizer.get("_target_") == OWN_OPTIMIZER


def _ask_for_facts(configs: Sequence[Config]) -> list[dict[str, Any]]:
    """Facts from a process of its own; ValueError if there are none of a config."""
    found = _ask("facts", configs)
    if len(found.values) < len(configs):
        failed = configs[len(found.values)]
        own = "model" if user_model(failed["module"], failed.get("model")) else "module"
        msg = (
            f"{own} and data must be created to plan a run; got "
            f"{own}._target_={failed[own]['_target_']}, "
            f"data._target_={failed['data']['_target_']}: {found.last_line}"
        )
        raise ValueError(msg)
    return list(found.values)


def _ask(question: Question, configs: Sequence[Config]) -> Answers:
    """What a process of its own answers, as the command imports no torch; ValueError if it died."""
    groups = [configs[0].get(group) for group in ("module", "data", "model")]
    try:
        open_fork_server(list(targets(groups)))
        return ask_process(question, configs)
    except ForkServerDied as error:
        raise ValueError(str(error)) from None
