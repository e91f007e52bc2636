"""init: a world, a method, a figure or a claim of one's own begins as the example of docs/adding.md, under another name.

`recollect/templates` holds these examples; a test compares them with the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import yaml

from recollect.settings.catalogue import KINDS, PAPERS, known, mine_folder
from recollect.settings.errors import UserError, nearest, shown
from recollect.settings.loading import config_path, names, sized_file
from recollect.settings.resolve import figure_settings
from recollect.stages.pairs import check_pair, starts_empty
from recollect.stages.selection import default_selection

TEMPLATES = Path(__file__).resolve().parents[1] / "templates"


class Begun(NamedTuple):
    """What is written for one kind of thing.

    Args:
        files: template -> where it goes in `mine/`; `{name}` is the new name.
        changed: what stands in the templates -> what takes its place; `{title}` is the name in words.
        module: kind of the module in the catalogue; empty: there is none.
        group: of the configuration.
        needs: options of the command that must be given.
    """

    files: Mapping[str, str]
    changed: Mapping[str, str]
    module: str
    group: str
    needs: tuple[str, ...]


KINDS_OF_FILES = {
    "world": Begun(
        {"world.py": "{name}.py", "environment.yaml": "config/environments/{name}.yaml"},
        {'"corridor")': '"{name}")', "world: corridor": "world: {name}", "title: Corridor": "title: {title}"},
        "world",
        "environments",
        (),
    ),
    "method": Begun(
        {"method.py": "{name}.py", "method.yaml": "config/methods/{name}.yaml"},
        {"algorithm: best_action": "algorithm: {name}", "title: Best action": "title: {title}"},
        "method",
        "methods",
        (),
    ),
    "figure": Begun(
        {"figure.yaml": "config/figures/{name}.yaml"},
        {
            "kind: in_context_curve": "kind: {kind}",
            "title: Corridor, unseen cells": "title: {title}",
            "Return of each in-context episode on cells that were held out.": "{caption}",
            "[corridor]": "[{env}]",
            "[best_action]": "[{method}]",
            "{metric: return, split: eval}": "{options}",
        },
        "",
        "figures",
        ("env", "method"),
    ),
    "claim": Begun(
        {"claim.yaml": "config/claims/{name}.yaml"},
        {
            "figure: corridor": "figure: {figure}",
            "env: corridor": "env: {env}",
            "method: best_action": "method: {method}",
            "best action does not rise": "the return does not rise",
            "A table of actions has no memory, so its return": "The return",
        },
        "",
        "claims",
        ("figure",),
    ),
}


def init(kind: str, name: str, scale: str, *, env: str = "", method: str = "", figure: str = "") -> str:
    """Write the files of a new world, method, figure or claim into `mine/`; what to do next, in words.

    Args:
        scale: at which the environment of a figure, and the figure of a claim, are looked up.
        env, method: that a new figure draws.
        figure: that a new claim is about; its first environment and method are compared.

    Raises:
        UserError: the kind is not known, the name is taken or no name, a file is there, or what it needs is not named, not known
            or cannot run.
    """
    where = f"recollect init {kind} {name}"
    if kind not in KINDS_OF_FILES:
        raise UserError(f"'{kind}' is nothing that can be begun", where=where, do=nearest(kind, KINDS_OF_FILES))
    begun = KINDS_OF_FILES[kind]
    _check_name(begun, name, where)
    told = {"env": env, "method": method, "figure": figure}
    for option in begun.needs:
        if not told[option]:
            raise UserError(f"a {kind} is about {_WORDS[option]}", where=where, do=f"name one: --{option} NAME")
    if kind == "figure":
        check_pair(scale, env, method)
        told |= _PER_EPISODE if starts_empty(scale, env) else _IN_CONTEXT
    if kind == "claim":
        drawn = figure_settings(scale, figure)
        told |= {"env": drawn.environments[0], "method": drawn.methods[0]}
    folder, words = mine_folder(), {"name": name, "title": name.replace("_", " ").capitalize(), "scale": scale, **told}
    texts = {folder / place.format(name=name): _text(template, begun, words) for template, place in begun.files.items()}
    _write(texts, where)
    written = "\n".join(shown(path) for path in texts)
    return f"{written}\n{_NEXT[kind].format(**words)}"


_IN_CONTEXT = {
    "kind": "in_context_curve",
    "caption": "Return of each in-context episode.",
    "options": "{metric: return, split: eval}",
}
_PER_EPISODE = {"kind": "bars", "caption": "Return per episode.", "options": "{metric: return, split: eval, last: all}"}
_WORDS = {"env": "an environment", "method": "a method", "figure": "a figure"}
_NEXT = {
    "world": "Change them, then see whether the world keeps its promises: `recollect check --env {name}`",
    "method": "Change them, then try it: `recollect check --env ENV --method {name}`",
    "figure": "Change it, then draw it: `snakemake results/{scale}/figures/{name}.pdf`",
    "claim": "Change it, then judge it: `recollect claims --scale {scale} --figure {figure}`",
}


def _check_name(begun: Begun, name: str, where: str) -> None:
    if not name.isidentifier() or name.startswith("__") or not isinstance(yaml.safe_load(name), str):
        raise UserError(
            f"'{name}' cannot be a name",
            where=where,
            do="use letters, digits and _, begin with a letter, and take no word that YAML reads as a value",
        )
    if begun.group == "figures" and name in ("all", *PAPERS, *default_selection().sets):
        raise UserError(f"'{name}' stands for several figures", where=where, do="choose another name")
    if begun.module and name in known(begun.module, name):
        what = f"the {KINDS[begun.module].title} '{name}' is there already"
        raise UserError(what, where=known(begun.module, name)[name], do="choose another name")
    sized = sized_file(name) if begun.group == "environments" else None
    if sized is not None:
        raise UserError(f"'{name}' is a size of '{sized.stem}' already", where=sized, do="choose another name")
    if name in names(begun.group):
        raise UserError(
            f"'{name}' is among the {begun.group} already",
            where=config_path(begun.group, name),
            do="choose another name",
        )


def _text(template: str, begun: Begun, words: Mapping[str, str]) -> str:
    text = (TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")
    for old, new in begun.changed.items():
        text = text.replace(old, new.format(**words))
    return text


def _write(texts: Mapping[Path, str], where: str) -> None:
    """Write new files, all or none."""
    from recollect.artifacts.sealed import write_bytes

    there = [shown(path) for path in texts if path.exists()]
    if there:
        raise UserError(
            "no file is written over", where=f"{where}: {', '.join(there)}", do="choose another name, or move the file"
        )
    written: list[Path] = []
    try:
        for path, text in texts.items():
            written.append(path)
            write_bytes(path, text.encode())
    except BaseException:  # also Ctrl-C: half of a world would be in the way of the next try
        for path in written:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        raise
