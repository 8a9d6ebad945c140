"""An experiment, or all of them, from plan to page."""
from __future__ import annotations

import logging
from collections.abc import Sequence

from ...datasets.utils.errors import ConfigError, UserError
from ...datasets.utils.files import data_root, make_folder
from ..report.measure import Measured
from ..runs.lock import RunLock
from ..vlm import openai
from ..vlm.loading import find_loader
from ..vlm.openai_weights import check_name
from .definition import Experiment, names, read_experiment
from .outcome import Outcome, write_index, write_outcome
from .plan import Place, PlannedRun, expand, select
from .runner import Runner, Tally, in_use

logger = logging.getLogger(__name__)

Plans = dict[str, list[PlannedRun]]


def read_experiments(name: str) -> dict[str, Experiment]:
    return {each: read_experiment(each) for each in (names() if name == "all" else [name])}


def make_plans(experiments: dict[str, Experiment], place: Place, only: Sequence[str]) -> Plans:
    """The runs of each experiment, cut down to `only`. A name must fit somewhere, not everywhere. What all runs would
    fail of is told now, once."""
    if place.root and not place.demo:
        data_root(place.root)
    family, name = find_loader(place.backbone)
    if name and family is openai:
        check_name(name)
    plans = {name: expand(experiment, place) for name, experiment in experiments.items()}
    if only:
        every = list(dict.fromkeys(run for plan in plans.values() for run in plan))
        if not every:
            raise ConfigError(f"--only takes a part of an experiment's runs, and {', '.join(plans)} has none")
        chosen = set(select(every, only))
        plans = {name: [run for run in plan if run in chosen] for name, plan in plans.items()}
        plans = {name: plan for name, plan in plans.items() if plan}
    return plans


def reproduce(
    experiments: dict[str, Experiment], plans: Plans, place: Place, rank: int = 0, world: int = 1,
) -> tuple[Tally, dict[str, Outcome], dict[str, str]]:
    """Runs what is not finished, then writes each outcome, once: of several ranks the first does. Returns what became
    of the runs, the outcomes, and why an outcome could not be written."""
    runs = list(dict.fromkeys(run for plan in plans.values() for run in plan))
    tally = Runner(runs, rank, world).work()
    if rank:
        return tally, {}, {}
    outcomes: dict[str, Outcome] = {}
    problems: dict[str, str] = {}
    known: dict[PlannedRun, Measured] = {}
    for name, plan in plans.items():
        out = place.outcome(name)
        make_folder(out)
        if in_use(out):
            logger.info("%s is being written by another process", out)
            continue
        try:
            with RunLock(out).held():
                outcomes[name] = write_outcome(experiments[name], place, plan, tally.failed, known)
            logger.info("%s: %s", name, outcomes[name].page)
        except Exception as error:  # the other outcomes are still wanted
            problems[name] = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            logger.error("FAILED to write %s: %s", name, problems[name], exc_info=not isinstance(error, UserError))
    write_index(place, [read_experiment(name) for name in names()])
    return tally, outcomes, problems
