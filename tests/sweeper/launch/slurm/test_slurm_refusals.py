"""What sbatch prints becomes advice that fits; the texts are SLURM's own (slurm_errno.c)."""

import pytest

from sweeper.launch.slurm.submit import explain_refusal

POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


@pytest.mark.parametrize(
    ("lines", "advice"),
    [
        (["QOSMaxSubmitJobPerUserLimit", POLICY], "The queue is full for now: repeat the command"),
        (["Resource temporarily unavailable"], "The queue is full for now: repeat the command"),
        (
            ["Requested time limit is invalid (missing or exceeds some limit)"],
            "Request less with hydra.launcher.time_min=N",
        ),
        (["QOSMaxGRESPerJob", POLICY], "Your account or QOS allows less"),
        (
            ["Invalid account or account/partition combination specified"],
            "Name yours with hydra.launcher.account=NAME",
        ),
        (["Invalid partition name specified"], "Choose one that sinfo lists with"),
        (["Requested node configuration is not available"], "Request what a node has"),
        (["Requested reservation is invalid"], "Correct it under hydra.launcher (conf/hydra"),
    ],
)
def test_advice_fits_what_slurm_says(lines, advice):
    printed = "\n".join(f"sbatch: error: {line}" for line in lines)

    said = explain_refusal(printed)

    assert said.startswith(f"SLURM must accept the jobs; sbatch says: {'. '.join(lines)}. {advice}")
