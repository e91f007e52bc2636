"""list: what can be named on a command line and in a configuration, read off the files of `config/`, `mine/` and plug-ins."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from recollect.settings.catalogue import declaration
from recollect.settings.claims import OWN
from recollect.settings.errors import UserError, nearest
from recollect.settings.layers import extended_scales
from recollect.settings.loading import config_path, names, nothing_here, read_yaml
from recollect.settings.resolve import environment_settings, figure_settings, method_mapping, scale_settings
from recollect.stages.columns import columns
from recollect.stages.inputs import any_environment, variants_of
from recollect.stages.listing_modules import MODULES, module_names, modules_listed
from recollect.stages.selection import default_selection

if TYPE_CHECKING:
    from recollect.settings.schema import EnvironmentSettings

Row = tuple[str, ...]
WIDTH, MOST_NAMES = 110, 100  # of the overview
MOST_SEEDS = 3  # different lists of them in the row of a scale


def listing(group: str | None = None, chosen: Sequence[str] = ()) -> str:
    """A group with a row for each name, or for the chosen ones; without a group the names of all groups.

    Raises:
        UserError: a group or name is unknown, or a file is wrong.
    """
    if not names("scales"):
        raise nothing_here()
    if group is None:
        return "\n\n".join(_overview(name) for name in (*GROUPS, *MODULES))
    if group not in (*GROUPS, *MODULES):
        what = f"there is nothing called '{group}' to be listed"
        raise UserError(what, where="recollect list", do=nearest(group, (*GROUPS, *MODULES)))
    listed = _names(group)
    if group == "variants":  # a method's name stands for its own
        of_methods = {name: [one for one in listed if one.startswith(f"{name}.")] for name in chosen}
        chosen = [one for name in chosen for one in of_methods[name] or [name]]
    for name in chosen:
        if (
            name not in listed and group != "environments"
        ):  # one of any size or id needs no file, and its row says if it is
            what = f"'{name}' is not among the {group}"
            raise UserError(what, where=f"recollect list {group}", do=nearest(name, listed))
    if group in MODULES:
        return modules_listed(group, chosen)
    head, _, row_of = GROUPS[group]
    return "\n".join(columns([head, *((name, *row_of(listed.get(name, name))) for name in chosen or listed)]))


def _overview(group: str) -> str:
    listed = _names(group)
    head = f"{group} ({len(listed)}; `recollect list {group}` says more)"
    if len(listed) > MOST_NAMES:
        return head
    text = textwrap.fill(", ".join(listed), WIDTH, break_long_words=False, break_on_hyphens=False)
    return f"{head}:\n{textwrap.indent(text, '  ')}"


def _names(group: str) -> Mapping[str, str]:
    """What may be named of a group -> what its row is made from."""
    return {name: name for name in module_names(group)} if group in MODULES else GROUPS[group][1]()


# ---------------------------------------------------------------------------- names as they are listed, and as files have


def _files(group: str) -> Callable[[], Mapping[str, str]]:
    return lambda: {name: name for name in names(group)}


def _environments() -> Mapping[str, str]:
    """Where the end of a name sets an option, that option stands in capitals: `tmaze_passive_LENGTH`."""
    found = {}
    for name in names("environments"):
        content = read_yaml(config_path("environments", name))
        between = "." if content["world"] == "gymnasium" else "_"
        found[f"{name}{between}{content['parameter'].upper()}" if "parameter" in content else name] = name
    return found


def _variants() -> Mapping[str, str]:
    """Those of all scales, in the order of the methods."""
    return {name: name for method in names("methods") for scale in names("scales") for name in _of(scale, method)}


def _of(scale: str, method: str) -> list[str]:
    return [f"{method}.{variant}" for variant in variants_of(scale, method)]


# ---------------------------------------------------------------------------------------------------------------- rows


def _scale(name: str) -> Row:
    seeds = Counter(figure_settings(name, figure).seeds for figure in names("figures"))
    said = [f"{_seeds(listed)} ({_counted(count, 'figure')})" for listed, count in seeds.most_common()]
    shown = ", ".join([*said[:MOST_SEEDS], *(["others"] if len(said) > MOST_SEEDS else [])])
    return ", ".join(extended_scales(name)[:-1]), shown, scale_settings(name).description


def _seeds(seeds: Sequence[int]) -> str:
    """`0 to 4`, `1, 5`, or of many that do not follow each other how many there are."""
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds)) if len(seeds) < 4 else f"{len(seeds)} seeds"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _figure(name: str) -> Row:
    content = read_yaml(config_path("figures", name))
    sets = [of for of, figures in default_selection().sets.items() if name in figures]
    return content.get("category", ""), content["kind"], ", ".join(sets), content.get("title", "")


def _environment(name: str) -> Row:
    """At the default scale; one whose name may end in a size or an id as its file has it."""
    settings = environment_settings(default_selection().scale, name)
    ids = declaration("world", settings.world, "GYMNASIUM_IDS") or {}
    fitting = [
        id_ for id_, options in ids.items() if {**options, **settings.options} == {**settings.options, **options}
    ]
    if settings.world == "gymnasium":
        fitting = [str(settings.options["id"])]
    return settings.world, settings.family, ", ".join(fitting), _spaces(settings)


def _spaces(environment: EnvironmentSettings) -> str:
    """What is seen and done, and how long an episode is; or what is missing to know it."""
    import numpy as np

    from recollect.environments import registry

    try:
        tasks = registry.tasks(environment.world, environment.options, "train")
        world = registry.make_world(environment.world, environment.options, tasks[:1], np.zeros(1, np.uint64))
    except UserError as error:
        return f"({error.what})"
    seen, done = (_space(space) for space in (world.single_observation_space, world.single_action_space))
    horizon = world.horizon
    world.close()
    return f"{seen}; {done}; {horizon}"


def _space(space: Any) -> str:
    shape = "×".join(map(str, space.shape))
    return f"{type(space).__name__} {shape} {space.dtype}" if shape else str(space)


def _method(name: str) -> Row:
    content = method_mapping(default_selection().scale, any_environment(), name)
    variants = len(_of(default_selection().scale, name))
    return content["algorithm"], content["data"], str(variants or ""), content.get("title", "")


def _variant(name: str) -> Row:
    scales = [scale for scale in names("scales") if name in _of(scale, name.partition(".")[0])]
    content = method_mapping(scales[0], any_environment(), name)
    where = "all" if scales == names("scales") else ", ".join(scales)
    return "its method's" if content.get("evaluation_only") else "its own", where, content["title"]


def _claim(name: str) -> Row:
    content = read_yaml(config_path("claims", name))
    return content.get("paper", OWN), content["figure"], content["statement"]


GROUPS: dict[str, tuple[Row, Callable[[], Mapping[str, str]], Callable[[str], Row]]] = {
    "scales": (("name", "extends", "seeds", "what it is for"), _files("scales"), _scale),
    "figures": (("name", "paper", "kind", "sets", "title"), _files("figures"), _figure),
    "environments": (
        ("name", "world", "packages", "gymnasium", "observation; action; steps of an episode"),
        _environments,
        _environment,
    ),
    "methods": (("name", "algorithm", "learns from", "variants", "title"), _files("methods"), _method),
    "variants": (("name", "policy", "scales", "title"), _variants, _variant),
    "claims": (("name", "paper", "figure", "statement"), _files("claims"), _claim),
}
"""Group -> headings, its names, and the row of one behind its name."""
