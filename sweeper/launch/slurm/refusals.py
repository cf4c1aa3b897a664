"""sbatch's errors when it rejects jobs, and what to do about them."""


def in_words(error: str) -> str:
    """A refusal in a sentence of SLURM's and one of ours.

    Args:
        error: all that sbatch printed.
    """
    said = [line.partition("error:")[2].strip() for line in error.splitlines() if "error:" in line]
    reason = ". ".join(dict.fromkeys(line.rstrip(".") for line in said)) or error.strip()
    return f"SLURM must accept the jobs; sbatch says: {reason}. {_advice(reason.lower())}"


def _advice(reason: str) -> str:
    found = (advice for words, advice in _ADVICE if any(word in reason for word in words))
    return next(found, _DEFAULT)


# private: SLURM error texts (slurm_errno.c), in lower case; the first that fits
_ADVICE = (
    (
        ("maxsubmit", "temporarily unavailable"),
        "The queue is full for now: repeat the command later, or put more runs in a job with "
        "hydra.launcher.runs_per_job=N.",
    ),
    (
        ("time limit is invalid", "maxwall"),
        "Request less with hydra.launcher.time_min=N: `sinfo` lists the limits, and a longer "
        "run resumes in the next job.",
    ),
    (
        ("accounting/qos policy",),
        "Your account or QOS allows less: see `sacctmgr show assoc` and `sacctmgr show qos`, "
        "request less, or name another with hydra.launcher.qos=NAME.",
    ),
    (
        ("invalid account", "invalid qos"),
        "Name yours with hydra.launcher.account=NAME and hydra.launcher.qos=NAME.",
    ),
    (("partition",), "Choose one that sinfo lists with hydra.launcher.partition=NAME."),
    (
        (
            "configuration is not available",
            "node count",
            "cpu count",
            "memory specification",
            "generic resource",
            "feature specification",
        ),
        "Request what a node has: see devices, num_nodes, hydra.launcher.gpus_per_node, "
        "cpus_per_rank, memory_gib and constraint, and `sinfo --Node --long`.",
    ),
)
_DEFAULT = "Correct it under hydra.launcher (conf/hydra/launcher/slurm.yaml lists all keys)."
