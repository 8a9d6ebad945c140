"""The options of a SLURM job: `--slurm partition=gpu gres=gpu:1 time=240`.

Imports neither torch nor submitit.
"""
from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib.util import find_spec

from ...datasets.utils.errors import ConfigError
from ...datasets.utils.registry import nearest

TIME = 240  # minutes of a job; a group that takes longer is continued by the next one
ARRAY_PARALLELISM = 32  # jobs that run at the same time
NUMBERS = ("time", "cpus_per_task", "gpus_per_node", "gpus_per_task", "signal_delay_s")
TEXTS = ("partition", "account", "qos", "gres", "constraint", "exclude", "nodelist", "mem",
         "mem_per_cpu", "mem_per_gpu", "comment", "mail_type", "mail_user", "dependency")
UNITS = {"time": " of minutes", "signal_delay_s": " of seconds"}


def parse_slurm(pairs: Sequence[str]) -> dict[str, str | int]:
    """The parameters of submitit's SLURM jobs.

    Numbers of nodes and tasks are not among them: a job is one process.
    """
    parameters: dict[str, str | int] = {"time": TIME}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.removeprefix("--").replace("-", "_")
        if not (equals and key and value and value.isprintable()):
            raise ConfigError(f"--slurm {pair}: write KEY=VALUE, such as partition=gpu")
        if key not in (*NUMBERS, *TEXTS):
            known = sorted((*NUMBERS, *TEXTS))
            raise ConfigError(f"--slurm {pair}: unknown key '{key}'.{nearest(key, known)} Known: "
                              f"{', '.join(known)}.")
        if key in TEXTS:
            parameters[key] = value
            continue
        if not value.isdecimal() or int(value) == 0:
            raise ConfigError(f"--slurm {pair}: {key} must be a whole number{UNITS.get(key, '')}, "
                              f"1 or more")
        parameters[key] = int(value)
    return parameters


def check_slurm() -> None:
    """Refuses if jobs cannot be submitted from here."""
    if not find_spec("submitit"):
        raise ConfigError(
            "--cluster slurm needs submitit: pip install -e '.[slurm]' in promptcal's folder"
        )
    if not shutil.which("sbatch"):
        raise ConfigError(
            "--cluster slurm needs sbatch, which is not in PATH: give the command on a "
            "machine of the cluster from which jobs are submitted, or use --jobs N on "
            "this one"
        )
