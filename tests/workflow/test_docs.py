"""The documentation is true where a machine can tell: commands, links, paths, options, defaults, numbers, names of tests."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from recollect.artifacts.sealed import manifest_path
from recollect.settings.catalogue import module_of
from recollect.settings.loading import read_yaml
from recollect.settings.resolve import figure_settings, names
from recollect.stages import paths

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)
NESTED = sorted((ROOT / "docs").glob("*/**/*.md"))
PAGE_IDS = [page.relative_to(ROOT).as_posix() for page in PAGES]
PAPERS_AND_GUIDES = ("radt", "memory_rl", "amago", "adding", "formats", "reliability", "workflow")
SPECIFIED = ("README.md", *(f"docs/{name}.md" for name in PAPERS_AND_GUIDES))
DEMO_PICTURE = "docs/figures/radt_dark_room_10x10.png"


pytestmark = pytest.mark.usefixtures("in_the_repository")


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def prose_of(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def commands(page: Path) -> list[list[str]]:
    """The commands in the shell blocks of a page, without comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def all_commands(program: str) -> list[tuple[str, list[str]]]:
    return [
        (id_, line) for page, id_ in zip(PAGES, PAGE_IDS, strict=True) for line in commands(page) if line[0] == program
    ]


def table_after(text: str, heading: str) -> list[dict[str, str]]:
    """The rows of the first table after a heading, by column."""
    lines = text.split(heading, 1)[1].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


# ------------------------------------------------------------------------------------------------------------- commands


def test_every_page_is_there_and_the_readme_is_short() -> None:
    assert set(SPECIFIED) <= set(PAGE_IDS)
    assert len(text_of("README.md").splitlines()) <= 120


def test_only_known_programs_are_named() -> None:
    known = {"make", "snakemake", "recollect", "dvc", "source"}
    assert {line[0] for page in PAGES for line in commands(page)} == known
    assert {tuple(line) for page in PAGES for line in commands(page) if line[0] == "source"} == {
        ("source", ".venv/bin/activate")
    }


def test_every_make_target_is_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", text_of("Makefile"), flags=re.MULTILINE))
    asked = all_commands("make")
    assert {"demo", "test", "setup"} <= {line[1] for page, line in asked if page == "README.md"}
    for page, line in asked:
        for word in line[1:]:
            name, is_variable, _ = word.partition("=")
            assert (f"$({name})" in text_of("Makefile")) if is_variable else word in targets, f"{page}: {word}"


def test_every_recollect_command_is_understood_with_all_its_options() -> None:
    from typer.main import get_command

    from recollect.cli import app

    group: Any = get_command(app)
    asked = all_commands("recollect")
    assert len(asked) >= 10
    for page, line in asked:
        assert line[1] in group.commands, f"{page}: {' '.join(line)}"
        command = group.commands[line[1]]
        context = command.make_context(line[1], line[2:])  # fails on unknown and on missing options; runs nothing
        assert not context.args, f"{page}: {' '.join(line)}"


def test_commands_named_in_running_text_exist() -> None:
    from typer.main import get_command

    from recollect.cli import app

    group: Any = get_command(app)
    targets = set(re.findall(r"^([a-z-]+):.*## ", text_of("Makefile"), flags=re.MULTILINE))
    for page in PAGE_IDS:
        said = prose_of(text_of(page))
        assert set(re.findall(r"`recollect ([a-z]+)", said)) <= set(group.commands), page
        assert set(re.findall(r"`make ([a-z-]+)", said)) <= targets, page


def test_every_dvc_command_is_known_and_there_are_stages_to_repeat() -> None:
    from dvc.cli.parser import get_main_parser

    parser = get_main_parser()
    for _, line in all_commands("dvc"):
        assert parser.parse_args(line[1:]).cmd in line[1:3]
    assert read_yaml(ROOT / "dvc.yaml")["stages"]


def rules() -> set[str]:
    """Names that can be asked for: of rules, and of targets."""
    texts = [file.read_text() for file in (ROOT / "rules").glob("*.smk")]
    named = re.findall(r"^rule (\w+):|^    \"(\w+)\": \[", "\n".join(texts), flags=re.MULTILINE)
    return {rule or target for rule, target in named}


def targets_of(line: list[str]) -> tuple[Any, list[str]]:
    from snakemake.cli import get_argument_parser

    asked = get_argument_parser().parse_args(line[1:])
    return asked, sorted(asked.targets)


def test_every_snakemake_command_is_understood_and_its_targets_and_profiles_exist() -> None:
    asked = all_commands("snakemake")
    assert any("--profile" in line and "cluster" in line for page, line in asked if page == "README.md")
    for page, line in asked:
        chosen, targets = targets_of(line)
        for profile in chosen.profile or []:
            assert (ROOT / profile / "config.yaml").is_file(), f"{page}: {profile}"
        for target in targets:
            found = re.fullmatch(r"results/(\w+)/figures/(\w+)\.pdf", target)
            if found and page not in ("docs/adding.md", "docs/tutorial.md"):  # they have figures of your own
                assert found.group(1) in names("scales") and found.group(2) in names("figures"), f"{page}: {target}"
            assert found or target in rules(), f"{page}: {target}"


@pytest.mark.slow
def test_every_snakemake_command_finds_its_jobs_in_a_dry_run(tmp_path: Path) -> None:
    """Those of README run for real in tests/users."""
    for name in ("Snakefile", "rules", "workflow", "envs", "config"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    for link in ("cluster", "profiles"):
        (tmp_path / link).symlink_to(os.readlink(ROOT / link))
    for line in commands(ROOT / "docs/workflow.md"):
        if line[0] != "snakemake" or ("conda" in line and shutil.which("conda") is None):
            continue
        if "--report" in line:  # of what is finished: it plans nothing
            continue
        done = subprocess.run(
            [sys.executable, "-m", "snakemake", "--dry-run", *(word for word in line[1:] if word != "--dry-run")],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{' '.join(line)}\n{done.stdout}{done.stderr}"
        assert "recollect run" in done.stdout + done.stderr, line


# -------------------------------------------------------------------------------------------------------- links, images


@pytest.mark.parametrize("page", [*PAGES, *NESTED], ids=[*PAGE_IDS, *(page.stem for page in NESTED)])
def test_every_relative_link_resolves(page: Path) -> None:
    links = re.findall(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)", prose_of(page.read_text(encoding="utf-8")))
    for link in links:
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{link} is not there"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE)
            known = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in known, f"{link} names no heading"


def test_every_image_is_there_and_the_readme_shows_one_figure_and_one_inspection_page() -> None:
    shown = [
        (page, image)
        for page in PAGES
        for image in re.findall(r"!\[[^\]]+\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    ]
    pictures = {DEMO_PICTURE, "docs/figures/inspection_radt.png"}
    assert {image for page, image in shown if page.name == "README.md"} == pictures
    for page, image in shown:
        assert (page.parent / image).is_file(), f"{image} is not there: copy it from results/demo/figures"
        assert (page.parent / image).read_bytes().startswith(b"\x89PNG"), image


def test_the_first_screen_of_the_readme_has_a_command_and_what_it_takes() -> None:
    screen = "\n".join(text_of("README.md").splitlines()[:20])
    assert "```sh\nmake setup FAMILY=cpu " in screen and "\nmake demo " in screen
    for taken in ("minutes on two CPU", "GB of memory", "GB of disk"):
        assert taken in " ".join(screen.split()), taken


def test_the_head_of_the_readme_names_scale_seeds_device_and_commit_of_its_table() -> None:
    head = text_of("README.md").split("\n## ", 1)[0].split(f"({DEMO_PICTURE})", 1)[1]
    assert head.index("| claim |") < head.index("Scale `demo`, seeds "), head
    assert re.search(r"Scale `demo`, seeds [\d to,and]+, device (cpu|cuda)[^|]+ commit ", head), head


# ---------------------------------------------------------------------------------------------------------------- paths


@pytest.mark.parametrize("page", PAGE_IDS)
def test_every_file_of_the_repository_that_is_named_exists(page: str) -> None:
    for name in re.findall(r"`([\w./-]+)`", prose_of(text_of(page))):
        if re.match(r"(src|config|rules|workflow|envs|tests|docs|benchmarks|cluster)/", name):
            example = page == "docs/adding.md" and f"# {name}\n" in text_of(page)
            assert (ROOT / name).exists() or example, f"{page} names {name}"


def test_no_page_names_a_path_of_a_machine() -> None:
    for page in (*PAGES, *NESTED):
        assert not re.findall(r"(?<![\w.])/(?:work|home|root|tmp|Users|opt)/", page.read_text(encoding="utf-8")), page


def test_the_paths_of_the_formats_page_are_those_of_the_code() -> None:
    """Each template of stages/paths.py is a path of the page, and no other is there."""
    places = {name: place for name, place in vars(paths).items() if isinstance(place, paths.Place)}
    expected = {place.template for name, place in places.items() if name not in ("run_folder", "figure_stem")}
    expected |= {place.template for place in paths.FIGURE_FILES.values()}
    rows = table_after(text_of("docs/formats.md"), "# Formats")
    assert {row["path"].strip("`") for row in rows} == expected
    everywhere = re.findall(r"`((?:data|results)/[\w{}./-]+)`", text_of("docs/formats.md"))
    for path in everywhere:
        assert path in expected or any(known.startswith(path) for known in expected), path
    assert manifest_path(Path("x.parquet")).name == "x.parquet.manifest.json"
    assert "`<name>.manifest.json`" in text_of("docs/formats.md")


def test_columns_and_kinds_of_the_formats_page_are_those_of_the_code() -> None:
    from recollect.artifacts.scores import SCORE_DTYPES
    from recollect.common.histories import COLUMNS
    from recollect.figures.spec import TABLE_COLUMNS
    from recollect.radt.chunks import Chunks

    page = text_of("docs/formats.md")

    def named(heading: str, column: str) -> list[str]:
        return [name for row in table_after(page, heading) for name in re.findall(r"`([\w:<>]+)`", row[column])]

    assert {row["column"].strip("`"): row["dtype"] for row in table_after(page, "## Score tables")} == SCORE_DTYPES
    assert named("## Histories", "array") == list(COLUMNS)
    assert named("## Embeddings and memory", "array") == ["keys", *Chunks.__dataclass_fields__]
    assert named("## Figures", "column") == list(TABLE_COLUMNS)
    source = "\n".join(file.read_text() for file in (ROOT / "src" / "recollect").rglob("*.py"))
    for row in table_after(page, "# Formats"):
        for kind in re.findall(r"`([^`]+)`", row["kind"]):
            assert f'"{kind}"' in source or kind.startswith(("figure.", "vectors of ")), f"no code writes kind {kind}"


def test_keys_of_a_figures_json_are_those_of_the_code() -> None:
    from recollect.figures import writing

    (function,) = [n for n in ast.parse(inspect.getsource(writing.manifest_of)).body if isinstance(n, ast.FunctionDef)]
    (result,) = [n.value for n in ast.walk(function) if isinstance(n, ast.Return)]
    assert isinstance(result, ast.Dict)
    keys = {key.value for key in result.keys if isinstance(key, ast.Constant)}
    rows = table_after(text_of("docs/formats.md").split("## Figures", 1)[1], "`.json` has these keys")
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row["key"])} == keys


# ------------------------------------------------------------------------------------------------------------- packages


def test_what_a_user_adds_to_the_environment_is_installed_in_one_way_which_leaves_faiss_alone() -> None:
    """With an extra, pip would put faiss-cpu over the files of faiss-gpu; `recollect[...]` on PyPI is not ours."""
    extras = tomllib.loads(text_of("pyproject.toml"))["project"]["optional-dependencies"]
    packages = {re.split("[=<>]", line)[0] for lines in extras.values() for line in lines}
    texts = {page: text_of(page) for page in PAGE_IDS}
    texts |= {str(path): path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")}
    for where, text in texts.items():
        assert not re.search(r"recollect\[|pip install (plotext|h5py|optuna|minari|wandb)", text), where
        assert not re.search(r"`pip install -e '[^`]*` (?!in the clone, in an environment of your own)", text), where
        added = re.findall(r"`\.venv/bin/uv pip install --python \.venv/bin/python ([^`]+)`", text)
        assert {name for line in added for name in line.split()} <= {*packages, "dvc-s3", "{name}"}, where


# ------------------------------------------------------------------------------------------------------ tests and claims


def test_every_promise_names_tests_that_exist() -> None:
    page = text_of("docs/reliability.md")
    promised = re.findall(r"^-\s+`(tests/[\w/]+\.py)::(test_\w+)`$", page, flags=re.MULTILINE)
    assert len(promised) == page.count("`tests/") >= 30
    for file, name in promised:
        assert f"\ndef {name}(" in text_of(file), f"{file} has no {name}"
    for section in page.split("\n## ")[1:]:
        assert "`tests/" in section, f"no test holds the promise: {section.splitlines()[0]}"


def test_the_pages_list_every_figure_that_is_configured_and_the_readme_counts_them() -> None:
    there: set[str] = set()
    for row in table_after(text_of("README.md"), "## What is there"):
        page = re.findall(r"\]\(([^)]+)\)", row["line of research"])[0]
        reproduced = table_after(text_of(page), "## What is reproduced")
        listed = [name for line in reproduced for name in re.findall(r"`(\w+)`", line["figure of ours"])]
        assert len(listed) == len(set(listed)) == int(row["figures"]), page
        there |= set(listed)
        for line in reproduced:
            said = re.findall(r"`(\w+)`", line["methods"])
            methods = figure_settings("paper", re.findall(r"`(\w+)`", line["figure of ours"])[0]).methods
            assert said == list(dict.fromkeys(method.partition(".")[0] for method in methods)), line
            assert ("variants" in line["methods"]) == any("." in method for method in methods), line
    assert there == set(names("figures"))
    (count,) = re.findall(r"There are (\d+) figures", text_of("README.md"))
    assert int(count) == len(there)


def test_published_numbers_are_those_that_the_figures_draw() -> None:
    curves = read_yaml(ROOT / "config" / "figures" / "references" / "radt.yaml")["radt_figures_3_4"]["curves"]
    published = curves["dark_room_10x10"]
    rows = {row.pop("method"): list(row.values()) for row in table_after(text_of("docs/radt.md"), "## Numbers")}
    labels = {"RA-DT": "radt", "RA-DT, domain-agnostic": "radt_agnostic", "AD": "ad", "DT": "dt"}
    for label, method in labels.items():
        expected = [*published[method]["y"], published[method]["last_five"]]
        assert [float(cell) for cell in rows[label]] == expected, label


def test_the_best_possible_returns_are_those_of_the_rooms() -> None:
    import numpy as np

    from recollect.environments import registry

    for final, value in (("zero", "90.05"), ("normal", "91.05")):
        options = {"width": 10, "height": 10, "final_step_reward": final}
        tasks = registry.tasks("dark_room", options, "eval")
        best = registry.make_world("dark_room", options, tasks, np.zeros(len(tasks), np.uint64)).optimal_return()
        assert float(best.mean()) == pytest.approx(float(value))
        assert value in text_of("docs/radt.md")


# ------------------------------------------------------------------------------------------------- options, defaults


def model_of(where: str, page: str) -> list[type[BaseModel]]:
    """The settings models that a cell of the column `where` is about."""
    if "environment" in where or "Visual Match" in where:
        ours = ("visual_match" if "Visual Match" in where else "tmaze", "Options")
        worlds = ("key_door", "KeyDoorOptions") if page == "docs/radt.md" else ours
        return [getattr(importlib.import_module(f"recollect.environments.{worlds[0]}"), worlds[1])]
    if "memory" in where:
        return [importlib.import_module("recollect.radt.memory_settings").MemorySettings]
    algorithms = ["radt"] if page == "docs/radt.md" else re.findall(r"\b(?:sacd|td3|sac)\b", where) or ["dqn"]
    return [
        importlib.import_module(module_of("method", algorithm, where="docs")).Hyperparameters
        for algorithm in algorithms
    ]


def default_of(model: type[BaseModel], name: str) -> Any:
    """The default of an option, `a.b` for one of a part."""
    first, _, rest = name.partition(".")
    assert first in model.model_fields, f"{model.__module__} has no option {first}"
    value = model.model_fields[first].get_default(call_default_factory=True)
    return default_of(type(value), rest) if rest else value


def as_said(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:g}".replace("-", "−")
    return f"`{value}`"


@pytest.mark.parametrize("page", ["docs/radt.md", "docs/memory_rl.md"])
def test_every_option_exists_and_has_the_default_that_the_page_says(page: str) -> None:
    rows = table_after(text_of(page), "## Options that give the released behaviour")
    assert len(rows) >= 8
    for row in rows:
        options = re.findall(r"`([\w.]+)`", row["option"])
        assert options, row
        for option in options:
            for model in model_of(row["where"], page):
                default = default_of(model, option)
                if default is not None and row["default"] != "the code's":
                    assert as_said(default) == row["default"], f"{page}: {option} is {default!r} by default"


@pytest.mark.parametrize("page", ["docs/radt.md", "docs/memory_rl.md"])
def test_every_value_of_a_choice_that_the_page_names_is_one(page: str) -> None:
    named = {"final_step_reward": ("zero", "normal"), "key_reset": ("sticky", "per_episode")} if "radt" in page else {}
    for option, values in named.items():
        (model,) = model_of("environment", page)
        for value in values:
            assert getattr(model(**{option: value}), option) == value
    for option, value in re.findall(r"`(\w+): (\w+)`", prose_of(text_of(page))):
        models = [m for where in ("environment", "memory", "hyperparameters") for m in model_of(where, page)]
        models += [importlib.import_module("recollect.radt.dt").Network]
        models += [importlib.import_module("recollect.memory_rl.sequence").SequenceSettings]
        models += [importlib.import_module("recollect.sources.recurrent_ppo").Hyperparameters]
        assert any(option in model.model_fields for model in models), f"{page}: {option}"
        fitting = [model for model in models if option in model.model_fields]
        parsed: Any = int(value) if value.isdigit() else value
        assert any(accepts(model, option, parsed) for model in fitting), f"{page}: {option}: {value}"


def accepts(model: type[BaseModel], option: str, value: Any) -> bool:
    """Whether a settings model takes this value for an option (whatever else it needs)."""
    from pydantic import TypeAdapter, ValidationError

    try:
        TypeAdapter(model.model_fields[option].annotation).validate_python(value)
    except ValidationError:
        return False
    return True
