"""Whether a method can learn in an environment, before anything runs: histories to learn from, and what is seen and done.

A method, or a source of histories, says in its file what it plays, where that is not everything: ``ACTIONS = "discrete"`` (or
"continuous") and ``OBSERVATIONS = "images"``. Of worlds that need packages of their own nothing is asked: these need not be
installed where things are planned. Nothing here imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from recollect.environments import registry
from recollect.settings import still
from recollect.settings.catalogue import declaration, module_of, own_line
from recollect.settings.errors import UserError, nearest, shown
from recollect.settings.layers import environment_file, method_layers
from recollect.settings.loading import config_path, read_yaml
from recollect.settings.resolve import (
    environment_mapping,
    environment_path,
    environment_settings,
    figure_settings,
    method_mapping,
    played_method,
    section,
)
from recollect.settings.schema import FigureSettings
from recollect.settings.still import remembered
from recollect.stages.inputs import is_trained
from recollect.stages.page import has_page, is_drawn_from_above

LEARNING = (
    "learning"  # recollect.artifacts.scores, which imports pandas: episodes of training, which no evaluation plays
)

ALWAYS = ("return", "success", "part_return")  # metrics of scores; the last two where the world has them


class Spaces(NamedTuple):
    """What is done in a world, and what is seen."""

    actions: str  # discrete, continuous or bits
    observations: str  # images or numbers


def check_figure(scale: str, figure: str) -> None:
    """Check all runs of a figure, and what it shows of them.

    Raises:
        UserError: a name is unknown, a pair cannot run, or what is asked for cannot be shown; the figure's file is named.
    """
    chosen = figure_settings(scale, figure)
    with named_by(scale, figure):
        check_names(scale, chosen)
        for env in chosen.environments:
            for method in chosen.methods:
                check_pair(scale, env, method)
        _check_shown(scale, chosen)


def _check_shown(scale: str, figure: FigureSettings) -> None:
    """Check that what a figure asks for is there.

    Raises:
        UserError: no such metric or task, no memory that stays, no training, or no world to draw.
    """
    _check_scores(scale, figure)
    if is_over_episodes(figure):
        for env in figure.environments:
            if starts_empty(scale, env):
                what = f"episodes of '{env}' each start empty (protocol: episodic), so no memory stays from one to the next"
                do = "take `kind: bars`, or an environment with `protocol: in_context`"
                raise UserError(what, where=f"kind: {figure.kind}", do=do)
    _check_episodes(scale, figure)
    if declaration("figure", figure.kind, "READS") == "training":
        for env, method in product(figure.environments, figure.methods):
            if not is_trained(scale, env, method):
                what = f"'{method}' is not trained, so nothing was logged"
                do = f"name '{played_method(scale, env, method)}', whose policy it plays"
                raise UserError(what, where=f"kind: {figure.kind}", do=do)
    if _draws_learning(figure):
        for env, method in product(figure.environments, figure.methods):
            if why := _lacks_learning(scale, env, method):
                what = f"'{method}' has no learning curve in '{env}': it {why}"
                do = "take `kind: bars` or `in_context_curve`, or leave the method out"
                raise UserError(what, where=f"kind: {figure.kind}", do=do)
    if declaration("figure", figure.kind, "FROM_ABOVE"):
        for env in figure.environments:
            if not is_drawn_from_above(scale, env):
                what = f"'{env}' cannot be drawn from above: the file of its world has no function `scene`"
                do = "write one (docs/adding.md), or take another environment or kind"
                raise UserError(what, where=f"kind: {figure.kind}", do=do)
    for method, env in figure.pages.items():
        if not has_page(scale, env, method):
            what = (
                f"the run of '{method}' in '{env}' can have no inspection page: nothing says what its world looks like"
            )
            do = "give the world a function `scene` (docs/adding.md), or leave the page out"
            raise UserError(what, where=f"pages: {{{method}: {env}}}", do=do)


def _check_episodes(scale: str, figure: FigureSettings) -> None:
    """Check that evaluations have the episodes that a figure draws. Raises UserError: they have too few, or a part is left."""
    drawn, least = (
        list(product(figure.environments, figure.methods)),
        declaration("figure", figure.kind, "LEAST_EPISODES"),
    )
    average = figure.options.get("average", 1)
    averaged = is_over_episodes(figure) and isinstance(average, int) and average > 1
    for env, method in drawn if averaged or least else ():
        episodes = _judged_by(scale, env, method)["episodes"]
        if averaged and episodes % average:
            what = f"the {episodes} episodes of '{method}' in '{env}' cannot be averaged by {average}"
            raise UserError(what, where="average", do="choose a number that divides the number of episodes")
        if least and (starts_empty(scale, env) or episodes < least):
            what = f"kind '{figure.kind}' takes {least} episodes in context, which '{method}' in '{env}' has not"
            do = f"set `protocol: in_context` and `episodes: {least}` or more in the `evaluation` of '{env}'"
            raise UserError(what, where=f"kind: {figure.kind}", do=do)
    traced = drawn if declaration("figure", figure.kind, "READS") == "traces" else ()
    for env, method in (*traced, *((env, method) for method, env in figure.pages.items())):
        tasks = _tasks_traced(scale, env)
        if tasks > (episodes := _judged_by(scale, env, method)["episodes"]):
            what = f"an evaluation of {episodes} episodes does not play all {tasks} tasks of '{env}', so none can be traced"
            raise UserError(what, where="evaluation.episodes", do=f"evaluate at least {tasks} episodes")


def _tasks_traced(scale: str, env: str) -> int:
    """How many tasks an episodic evaluation must play to be traced; 1 where all are played anyway, or the world may be not here."""
    environment = environment_mapping(scale, env)
    if not starts_empty(scale, env) or environment.get("family", "base") != "base":
        return 1
    return len(registry.tasks(str(environment["world"]), environment.get("options") or {}, "eval"))


def _draws_learning(figure: FigureSettings) -> bool:
    """Whether a figure is drawn from evaluations that are made while a run learns."""
    reads = declaration("figure", figure.kind, "READS")
    return reads in (None, "scores") and LEARNING in {split for _, split in _splits(figure)}


def _lacks_learning(scale: str, env: str, method: str) -> str:
    """Why a method is not evaluated while it learns; nothing where it is, or where only its own code says."""
    if not is_trained(scale, env, method):
        return f"plays the policy of '{played_method(scale, env, method)}'"
    chosen = method_mapping(scale, env, method)
    if chosen.get("data") == "histories" and _is_ours("method", str(chosen.get("algorithm")), f"method '{method}'"):
        return "learns from histories, and plays only when it has learned"
    return ""


def check_splits(scale: str, figure: str) -> None:
    """Check that a figure's runs are evaluated on the splits that it draws.

    Raises:
        UserError: some are not, so the figure could not be drawn when all its runs have ended; its file is named.
    """
    for method, env, split, have in lacking_splits(scale, figure):
        with named_by(scale, figure):
            what = f"the runs of '{method}' in '{env}' are evaluated on {' and '.join(have)}, and not on '{split}'"
            do = f"add '{split}' to the `evaluation: splits` of '{env}' at scale {scale}, or leave the figure out there"
            raise UserError(what, where="split", do=do)


def _check_scores(scale: str, figure: FigureSettings) -> None:
    """Check that a figure's metrics, and the tasks that its rows name, are those of its environments. Raises UserError: else."""
    reads = declaration("figure", figure.kind, "READS")
    if reads not in (None, "scores") or not _is_ours("figure", figure.kind, f"kind: {figure.kind}"):
        return
    for option, (env, split) in product(("metric", "normalised"), dict.fromkeys(_splits(figure))):
        given = figure.options.get(option) or ()
        for metric in [given] if isinstance(given, str) else given:
            if metric in ALWAYS or (split == LEARNING and not _logs_known_metrics(scale, env, figure.methods)):
                continue
            if metric not in (known := _metrics(scale, env, split)):
                what = f"the scores of '{env}' have no metric '{metric}'"
                raise UserError(what, where=option, do=nearest(metric, known))
    for env, *more in _rows(figure):
        if len(more) != 2 or not more[1].isdigit():  # of all tasks of a split; or its kind refuses it
            continue
        split, number = more[0], int(more[1])
        count = min(_tasks_played(scale, env, method, split) for method in figure.methods)
        if number >= count:
            what = f"the row '{env}/{split}/{number}' is of no task that is played: {count} of '{split}' are, counted from 0"
            do = f"name one of 0 to {count - 1}, or raise `evaluation: episodes` of '{env}'"
            raise UserError(what, where=str(declaration("figure", figure.kind, "ROWS")), do=do)


def _tasks_played(scale: str, env: str, method: str, split: str) -> int:
    """How many tasks of a split, the first, a final evaluation plays: of few episodes (protocol `episodic`), not all."""
    environment, judged = environment_settings(scale, env), _judged_by(scale, env, method)
    tasks = len(registry.tasks(environment.world, environment.options, split))
    return min(tasks, int(judged["episodes"])) if judged["protocol"] == "episodic" else tasks


def _logs_known_metrics(scale: str, env: str, methods: Sequence[str]) -> bool:
    """Whether world and methods are files of this package: what others log while they learn only they know."""
    world = str(environment_mapping(scale, env).get("world"))
    return _is_ours("world", world, f"environment '{env}'") and all(
        _is_ours("method", str(method_mapping(scale, env, method).get("algorithm")), f"method '{method}'")
        for method in methods
    )


def _is_ours(kind: str, name: str, where: str) -> bool:
    """Whether a name stands for a file of this package."""
    return module_of(kind, name, where=where).startswith("recollect.")


def _judged_by(scale: str, env: str, method: str) -> dict[str, Any]:
    """How a method is judged in an environment: as that says, but for what a variant changes of it."""
    changed = section(method_mapping(scale, env, method), "evaluation")
    of_variant = {key: value for key, value in changed.items() if value is not None}
    return environment_settings(scale, env).evaluation.model_dump() | of_variant


def _metrics(scale: str, env: str, split: str) -> set[str]:
    """What the scores of an environment can hold: what is always there, its own, and returns that its tasks normalise."""
    environment = environment_settings(scale, env)
    known = {*ALWAYS, *environment.options.get("metrics", ())}
    if split != LEARNING:
        for task in registry.tasks(environment.world, environment.options, split):
            known |= set(task.data.get("normalisation", {}))
    return known


def lacking_splits(scale: str, figure: str) -> Iterator[tuple[str, str, str, Sequence[str]]]:
    """Of what a figure draws: method, environment, split that no run of both is evaluated on, and those that it is evaluated on."""
    chosen = figure_settings(scale, figure)
    if declaration("figure", chosen.kind, "READS") not in (None, "scores"):
        return
    for (env, split), method in product(_splits(chosen), chosen.methods):
        with named_by(scale, figure):
            have = _judged_by(scale, env, method)["splits"]
        if split not in (LEARNING, *have):
            yield method, env, split, have


def _splits(figure: FigureSettings) -> Iterator[tuple[str, str]]:
    """The environments and splits that a figure draws, by its options; where these name no split, that of its kind's file."""
    split = figure.options.get("split", declaration("figure", figure.kind, "SPLIT"))
    groups, rows = figure.options.get("groups"), figure.options.get(str(declaration("figure", figure.kind, "ROWS")))
    if isinstance(groups, Mapping):
        for group in groups.values():
            if isinstance(group, Mapping) and group.get("split", split) is not None:
                yield from ((env, str(group.get("split", split))) for env in group.get("environments", ()))
    elif rows and isinstance(rows, Mapping):
        yield from ((env, more[0] if more else str(split)) for env, *more in _rows(figure))
    elif split is not None:
        yield from product(figure.environments, [split] if isinstance(split, str) else split)


def _rows(figure: FigureSettings) -> Iterator[list[str]]:
    """The rows that a figure's options list, in parts: the environment, and its split and the number of a task if named."""
    panels = figure.options.get(str(declaration("figure", figure.kind, "ROWS")))
    for labels in panels.values() if isinstance(panels, Mapping) else ():
        if isinstance(labels, Mapping):  # else its kind refuses it
            yield from (str(row).split("/") for row in labels)


def is_over_episodes(figure: FigureSettings) -> bool:
    """Whether a figure draws scores against the in-context episode. (A `part_return` is of a part of one episode.)"""
    drawn = {"x": "episode", "metric": "return", **figure.options}
    return figure.kind == "in_context_curve" and drawn["x"] == "episode" and drawn["metric"] != "part_return"


def starts_empty(scale: str, env: str) -> bool:
    """Whether policies are judged in episodes that each begin without a memory."""
    return section(environment_mapping(scale, env), "evaluation").get("protocol") == "episodic"


def check_names(scale: str, figure: FigureSettings) -> None:
    """Check that there are a figure's environments and methods, and those of its options. Raises UserError: one is unknown."""
    for env in figure.environments:
        read_yaml(environment_file(env)[0])
    for env in _named_in_options(figure):
        environment_file(env)
    for method in figure.methods:
        method_layers(scale, figure.environments[0], method)


def _named_in_options(figure: FigureSettings) -> Iterator[str]:
    """The environments, drawn or not, that a figure's options name: those options that its kind lists as `BY_ENVIRONMENT`."""
    for option in declaration("figure", figure.kind, "BY_ENVIRONMENT") or ():
        given = figure.options.get(option)
        for key, value in given.items() if isinstance(given, Mapping) else ():
            listed = isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
            yield from value if listed else [key]


@contextmanager
def named_by(scale: str, figure: str) -> Iterator[None]:
    """Errors of a block say which figure names what they are about."""
    try:
        yield
    except UserError as error:
        raise error.at(f"{error.where}, named by {shown(config_path('figures', figure))} (scale {scale})") from error


def check_pair(scale: str, env: str, method: str) -> None:
    """Check that a method can learn in an environment.

    Raises:
        UserError: it cannot, one of them is unknown, or the world cannot be made here.
    """
    if still.prepared(f"{scale} {env} {method}") is None:
        _check(scale, env, method)


def _check(scale: str, env: str, method: str) -> None:
    environment = environment_mapping(scale, env)
    chosen, file = method_mapping(scale, env, method), shown(environment_path(env))
    where = f"{file}: environment '{env}' with method '{method}'"
    learners = [("method", str(chosen.get("algorithm")), f"method '{method}'")]
    if chosen.get("data") == "histories":
        source = environment.get("source")
        if source is None:
            what = f"this environment has no source of histories, and the method '{method}' learns from them"
            cure = (
                "give it a file of its own with a `source:` section"
                if "." in env
                else f"add a `source:` section to {file}"
            )
            raise UserError(what, where=where, do=f"{cure} (docs/adding.md), or take methods with `data: online`")
        algorithm = str(section(environment, "source").get("algorithm", "ppo"))
        learners.append(("source", algorithm, f"source of histories '{algorithm}'"))
    if chosen.get("data") == "online" and environment.get("images") is not None:
        what = f"the method '{method}' learns from what it plays, and this environment encodes its images beforehand"
        raise UserError(
            what, where=where, do="take a method with `data: histories`, or an environment without a section `images:`"
        )
    if environment.get("family", "base") != "base":
        return
    for kind, algorithm, called in learners:
        _check_played(kind, algorithm, called, environment, where)


def _check_played(kind: str, algorithm: str, called: str, environment: Mapping[str, Any], where: str) -> None:
    """Check what a method or a source declares that it plays. Raises UserError: it is something else, or there is no world."""
    try:
        options = json.dumps(environment.get("options") or {}, sort_keys=True)
        found = _spaces(str(environment.get("world")), options, _judged_split(environment))
    except UserError as error:
        raise error.at(f"{where} ({error.where})") from error
    actions, seen = declaration(kind, algorithm, "ACTIONS"), declaration(kind, algorithm, "OBSERVATIONS")
    if actions is not None and actions != found.actions:
        do = f"take one for {found.actions} actions, or another environment"
        raise UserError(
            f"the {called} plays {actions} actions, and this world's are {found.actions}", where=where, do=do
        )
    encoded = kind == "method" and environment.get("images") is not None
    observations = "numbers" if encoded else found.observations
    if seen is not None and seen != observations:
        do = f"take another one, or an environment of {seen} (without a section `images:`)"
        raise UserError(f"the {called} sees {seen}, and this environment shows {observations}", where=where, do=do)


def _judged_split(environment: Mapping[str, Any]) -> str:
    """The first split that policies are judged on: it has the fewest tasks, and a maze for each takes seconds."""
    return str(next(iter(section(environment, "evaluation").get("splits") or ()), "eval"))


@remembered
def _spaces(world: str, options_text: str, split: str) -> Spaces:
    """Of a world with options, as JSON. Raises UserError: it cannot be made."""
    from gymnasium.spaces import Box, Discrete

    options = json.loads(options_text)
    try:
        tasks = registry.tasks(world, options, split)
        made = registry.make_world(world, options, tasks[:1], np.zeros(1, np.uint64))
    except UserError:
        raise
    except Exception as error:  # of somebody's code
        what = f"the world '{world}' cannot be made: {type(error).__name__}: {error}"
        raise UserError(what, where=own_line(error) or f"world {world}", do="mend what raises it") from error
    seen, acts = made.single_observation_space, made.single_action_space
    made.close()
    actions = {Box: "continuous", Discrete: "discrete"}.get(type(acts), "bits")
    is_image = seen.dtype == np.uint8 and len(seen.shape or ()) == 3
    return Spaces(actions, "images" if is_image else "numbers")
