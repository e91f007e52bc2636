"""What is said when a scale is done, and of which scale and figures where nobody names them."""

from __future__ import annotations

import sys
from pathlib import Path

import made_results
import pytest

from recollect import cli
from recollect.settings.errors import UserError
from recollect.settings.still import held_still
from recollect.stages.claims import claims
from recollect.stages.inputs import report_inputs
from recollect.stages.selection import default_selection
from recollect.stages.table import STAGES


def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["recollect", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    return capsys.readouterr().out


def test_without_a_name_it_is_about_what_the_configuration_selects(
    workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (workdir / "config/config.yaml").write_text("scale: smoke\nfigures: radt_dark_room_10x10\n")
    for command in ("finished", "forecast"):
        text = said(capsys, monkeypatch, command)
        assert "radt_dark_room_10x10" in text and "smoke" in text and "demo" not in text
    assert "at demo scale" in said(capsys, monkeypatch, "finished", "--scale", "demo")
    sets = "sets: {two: [radt_grid_worlds, helm_tokens]}\n"
    (workdir / "config/config.yaml").write_text(f"scale: smoke\nfigures: two\n{sets}")
    assert default_selection().figures_at() == ("radt_grid_worlds", "helm_tokens")
    assert "helm_tokens" in said(capsys, monkeypatch, "finished")
    (workdir / "config/config.yaml").write_text(f"scale: smoke\nfigures: radt_dark_room_10x10\n{sets}")
    text = said(capsys, monkeypatch, "finished", "two")
    assert "radt_grid_worlds" in text and "radt_dark_room_10x10" not in text
    (workdir / "config/config.yaml").write_text("scale: smoke\nfigures: all\n")
    with held_still():
        chosen = default_selection()
        found = [*chosen.figures_at(), *chosen.left_out()]
    assert sorted(found) == sorted(path.stem for path in (workdir / "config/figures").glob("*.yaml"))


def test_verdicts_stand_beside_the_figures_and_end_what_is_said(
    workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = made_results.configure("few", [made_results.ROOM], ["ad"], range(5), kind="in_context_curve")
    for seed in range(5):
        made_results.write_run(made_results.ROOM, "ad", seed)
    (workdir / "config/config.yaml").write_text(f"scale: {made_results.SCALE}\nfigures: [{few}]\n")
    assert "Claims" not in said(capsys, monkeypatch, "finished")
    made_results.claim("rises", few)
    last = said(capsys, monkeypatch, "finished").splitlines()[-1]
    assert last == "Claims: judge them with `snakemake results/demo/claims.json`"
    claims(made_results.SCALE, [few])
    lines = said(capsys, monkeypatch, "finished").splitlines()
    assert " ".join(lines[1].split()) == f"results/demo/figures/{few}.pdf ✓ rises it does (not there yet)"
    assert lines[-1] == "Claims: 1 holds (results/demo/claims.json)"
    made_results.claim("falls", few)  # since
    last = said(capsys, monkeypatch, "finished").splitlines()[-1]
    judge = "`snakemake results/demo/claims.json`"
    assert last == f"Claims: 1 holds (results/demo/claims.json); 1 not judged yet: {judge}"


def test_about_one_figure_the_commands_are_about_that_figure(
    workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = "radt_dark_room_10x10"
    lines = said(capsys, monkeypatch, "finished", "--scale", "demo", figure).splitlines()
    assert lines[-2:] == [
        f"Report: make it with `snakemake --config figures={figure} -- results/demo/report.html`",
        f"Claims: judge them with `snakemake --config figures={figure} -- results/demo/claims.json`",
    ]
    assert "--config figures=demo_all --" in said(capsys, monkeypatch, "finished", "--scale", "demo", "demo_all")
    assert "--config figures='[helm_tokens,radt_grid_worlds]' --" in said(
        capsys, monkeypatch, "finished", "--scale", "demo", "helm_tokens", "radt_grid_worlds"
    )
    for file in report_inputs("demo", figure).values():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    Path("results/demo/claims.json").unlink()
    with pytest.raises(UserError, match=f"`snakemake --config figures={figure} -- results/demo/claims.json`"):
        STAGES["report"].run("demo", [figure])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["finished", "--scale", "demo", "nofig"], "no figure named 'nofig'"),
        (
            ["play", "--scale", "smoke", "--env", "tmaze_passive_5", "--method", "dqn_ff", "--seed", "0",
             "--video", "a.gif", "--episodes", "0"],
            "0 episodes cannot be played",
        ),
    ],
)  # fmt: skip
def test_a_figure_that_there_is_not_and_zero_episodes_are_refused(
    workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], why: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["recollect", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code
    assert why in capsys.readouterr().err
