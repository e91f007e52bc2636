"""reference: a page for each paper with every hyper-parameter of its methods: what it does, its default, where it is published.
And a page of the kinds of figures with their options.

Keys, defaults and descriptions are those of the models that check settings; values and sources those of
tests/parity/published_settings. A test refuses pages that differ from these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from recollect.artifacts.sealed import write_bytes
from recollect.settings.catalogue import PAPERS, known, load
from recollect.settings.errors import UserError
from recollect.settings.loading import config_folder, names, read_yaml
from recollect.settings.resolve import environment_mapping, method_mapping
from recollect.stages.declared import READ, Entry, entries, summary, value_as_yaml

FOLDER = Path("docs/reference")
PUBLISHED = Path("tests/parity/published_settings")
TITLES = {**{folder: paper.name for folder, paper in PAPERS.items()}, "sources": "Learning histories"}
MOST_SOURCES = 3  # of one setting; the file has all


def write_reference() -> str:
    """Write the pages; gives their paths as text.

    Raises:
        UserError: this folder is no clone.
    """
    found = pages()
    for path, text in found.items():
        write_bytes(path, text.encode())
    return "\n".join(map(str, found))


def pages() -> dict[Path, str]:
    """Each page as it must be. Raises UserError: this folder is no clone."""
    if not PUBLISHED.is_dir():
        what = "the published settings are not here, from which the reference is written"
        raise UserError(what, where=PUBLISHED, do="run it in a clone of the repository")
    found = {FOLDER / f"{paper}.md": _page(paper) for paper in TITLES}
    listed = "\n".join(f"- [{title}]({paper}.md)" for paper, title in TITLES.items())
    found[FOLDER / "figures.md"] = _figures()
    return {FOLDER / "hyperparameters.md": f"# Hyper-parameters\n\n{_INTRODUCTION}\n\n{listed}\n", **found}


def _figures() -> str:
    """The page of the kinds of figures, ours alone."""
    lines = ["# Kinds of figures", "", _FIGURES]
    for name, path in known("figure").items():
        if not path.startswith("recollect."):
            continue
        module = load("figure", name, where=path)
        lines += ["", f"## {name}", "", summary(module), ""]
        lines += [f"It reads {READ[getattr(module, 'READS', 'scores')]}.", ""]
        lines += ["| option | takes | default | what it does |", "|---|---|---|---|"]
        for key, takes, default, said in entries(module.Options):
            lines.append(f"| {' | '.join(map(_cell, (f'`{key}`', takes, f'`{default}`', said)))} |")
    return "\n".join(lines) + "\n"


_FIGURES = """A figure's file names one of these kinds, `kind: in_context_curve`, and says in `options` what differs from its
defaults ([how a figure is added](../adding.md#a-figure)). `recollect list kinds` prints the same, with kinds of your own.
`recollect reference` writes this page from the code."""


_INTRODUCTION = """These pages list every setting of every method, and of the sources of learning histories. `recollect reference`
writes them from the code, and a test compares them.

A default holds where no file of `config/` says otherwise. `recollect settings` prints what a run has, and `--why KEY` says
which file and line a value comes from.

The last column has published values. Behind each stands in brackets where it is published: in the paper, or in a file of the
released code. A pattern such as `procgen/*` names the runs of scale `paper` that a value is of; without a pattern it is of
all. Values of ablations are left out; they stand, with all others, in
[tests/parity/published_settings](../../tests/parity/published_settings)."""


def _page(paper: str) -> str:
    kind = "source" if paper == "sources" else "method"
    modules = {
        name: load(kind, name, where=path)
        for name, path in known(kind).items()
        if path.startswith(f"recollect.{paper}.")
    }
    found: dict[Entry, list[str]] = {}
    for name, module in modules.items():
        for part in ("Hyperparameters", "Memory"):
            model = getattr(module, part, None)
            for entry in entries(model, "memory." if part == "Memory" else "") if model is not None else ():
                found.setdefault(entry, []).append(name)
    published = read_yaml(PUBLISHED / f"{'radt' if kind == 'source' else paper}.yaml")
    methods = _methods() if kind == "method" else {}
    runs = {name: [f"*/{method}" for method in own] for name, own in methods.items()} if methods else _learned_by()
    order = list(dict.fromkeys(entry[0] for entry in found))
    prefix = "environment.source." if kind == "source" else "method."
    lines = [f"# {TITLES[paper]}: hyper-parameters", "", _INTRODUCTIONS[kind], ""]
    lines += [f"- `{name}` is the algorithm of {_listed(methods[name])}" for name in modules if name in methods]
    lines += ["", f"Published: {published['paper']}; {published['code']}.", ""]
    lines += ["| setting | of | takes | default | what it does | published |", "|---|---|---|---|---|---|"]
    for (key, takes, default, said), of in sorted(found.items(), key=lambda item: _order(item[0][0], order)):
        readers = {run for name in of for run in runs.get(name, ())}
        whole = f"{prefix}{'' if key.startswith('memory.') else 'hyperparameters.'}{key}"
        cells = (f"`{key}`", "all" if len(of) == len(modules) else ", ".join(of), takes, f"`{default}`", said)
        lines.append(f"| {' | '.join(map(_cell, (*cells, _published(whole, published, readers))))} |")
    return "\n".join(lines) + "\n"


def _order(key: str, keys: Sequence[str]) -> tuple[list[str], int]:
    """By the groups that a key is in, then as declared."""
    return key.split(".")[:-1], keys.index(key)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


_HOW = "[How to read the table](hyperparameters.md)."
_INTRODUCTIONS = {
    "method": "Settings of a method's `hyperparameters`; a key that begins with `memory.` is one of its `memory`. "
    + _HOW,
    "source": "Settings of `source: {hyperparameters: ...}` of an environment. " + _HOW,
}


def _methods() -> dict[str, list[str]]:
    """The methods of each algorithm, without any of yours."""
    methods: dict[str, list[str]] = {}
    for path in sorted((config_folder() / "methods").glob("*.yaml")):
        content = method_mapping("paper", names("environments")[0], path.stem)
        methods.setdefault(content["algorithm"], []).append(path.stem)
    return methods


def _learned_by() -> dict[str, list[str]]:
    """The environments whose histories a source learns at scale `paper`, as patterns of runs, without any of yours."""
    runs: dict[str, list[str]] = {}
    for path in sorted((config_folder() / "environments").glob("*.yaml")):
        source = environment_mapping("paper", path.stem).get("source")
        if source is not None:
            runs.setdefault(source["algorithm"], []).append(f"{path.stem}/*")
    return runs


# -------------------------------------------------------------------------------------------------- what is published


def _published(key: str, published: Mapping[str, Any], readers: Collection[str]) -> str:
    """The values of a setting that are published for some runs, each with the place where it stands.

    Args:
        readers: those of a method in all environments, `*/dqn_gpt`, or of an environment with all methods, `procgen/*`.
    """
    found: dict[str, tuple[str, list[str]]] = {}
    for group in published["groups"]:
        said = group["settings"].get(key)
        runs = [run for run in group["runs"] if any(_is_of(run, reader) for reader in readers)]
        if said is None or not runs:
            continue
        if all(any(fnmatchcase(reader, run) for run in runs) for reader in readers):
            found.clear()  # the last that says something of a run decides
        if isinstance(said, list):
            value, source = value_as_yaml(said[0]), said[1]
        else:
            of = {name: value_as_yaml(said[name]) for name in ("published", "paper", "released") if name in said}
            value, source = "; ".join(f"{name} {each}" for name, each in of.items()), said["source"]
        found.setdefault(value.removeprefix("published "), (source, []))[1].extend(runs)
    texts = []
    for value, (source, runs) in list(found.items())[:MOST_SOURCES]:
        of_runs = "" if "*" in runs else f", {_listed(runs[:2])}{' ...' if len(runs) > 2 else ''}"
        texts.append(f"{value} ({source}{of_runs})")
    if len(found) > MOST_SOURCES:
        texts.append(f"and {len(found) - MOST_SOURCES} more")
    if texts:
        return "; ".join(texts)
    return next((f"not published: {why}" for name, why in published["ours"].items() if fnmatchcase(key, name)), "")


def _is_of(pattern: str, reader: str) -> bool:
    """Whether a pattern of runs, `dark_room_*/dqn_*`, is of those of a reader; a method's variants are not its own runs."""
    env, method = reader.split("/")
    wanted_env, _, wanted_method = pattern.rpartition("/")
    return fnmatchcase(method, wanted_method) if env == "*" else fnmatchcase(env, wanted_env or "*")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
