"""The profile for one machine with GPUs: the real Snakemake, command and lease, on two GPUs that a stand-in lists.

No GPU is used: in place of training, each job holds the device that it was given until as many jobs as should run at once
have begun.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import preloaded
import pytest
import yte
from snakemake.resources import Resources

ROOT = Path(__file__).resolve().parents[2]
MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 10**6
RUNS = [f"results/paper/runs/tmaze_passive_50/dqn_gpt/seed_{seed}/policy.safetensors" for seed in range(6)]
TWO_GPUS = "#!/bin/sh\necho 'GPU 0: A (UUID: GPU-a)'\necho 'GPU 1: A (UUID: GPU-b)'\n"
# All of `recollect run` but the training, with a build of torch that could use a GPU.
RECOLLECT = """
import os, pathlib, subprocess, sys, time
from unittest import mock
import torch
from recollect import cli
from recollect.artifacts import lease

def hold(stage, names, options, device):
    begin, end = time.time(), time.time() + 60
    pathlib.Path("begun", str(os.getpid())).touch()
    while len(os.listdir("begun")) < int(os.environ["AT_ONCE"]) and time.time() < end:
        time.sleep(0.05)
    time.sleep(0.5)
    subprocess.run([{stand_in!r}, *sys.argv[1:]], check=True)
    with open("held", "a") as file:
        print(device, os.environ["CUDA_VISIBLE_DEVICES"], begin, time.time(), file=file)

with mock.patch.object(lease, "_torch_is_cpu_only", lambda: False), mock.patch.object(cli, "one", hold):
    cli.main()
"""


@pytest.fixture
def two_gpus(
    workflow_in: Callable[[Path], Any], stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """A copy of the workflow on a machine that seems to have two GPUs."""
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "nvidia-smi").write_text(TWO_GPUS)
    (commands / "nvidia-smi").chmod(0o755)
    preloaded.script(commands / "recollect", "holds_device")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    workflow = dataclasses.replace(workflow_in(tmp_path / "repository"), commands=commands)
    (workflow.folder / "begun").mkdir()
    (workflow.folder / "src/holds_device.py").write_text(RECOLLECT.format(stand_in=str(stand_in / "recollect")))
    return workflow


def test_jobs_share_the_memory_of_the_machine_as_with_the_default_profile() -> None:
    profile = yte.process_yaml((ROOT / "workflow/profiles/gpu/config.yaml").read_text(), require_use_yte=True)
    assert profile["resources"] == {"gpu": 1, "mem_mb": MEMORY}


@pytest.fixture
def share_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """As the Snakefile has it, which imports modules of the workflow from their folder."""
    monkeypatch.syspath_prepend(str(ROOT / "workflow"))
    import snakemake_internals

    monkeypatch.delitem(sys.modules, "snakemake_internals")
    return snakemake_internals.share_memory


@pytest.mark.parametrize(
    ("named", "limit"),
    [({}, MEMORY), ({"gpu": 4}, MEMORY), ({"mem_mb": 5000}, 5000), ({"mem": "6GB"}, 6000), ({"mem_gb": 7}, None)],
)
def test_other_limits_of_the_command_line_do_not_lift_that_of_memory(
    named: dict[str, Any], limit: int | None, share_memory: Callable[[Any], None]
) -> None:
    """For Snakemake, `--resources gpu=4` takes the place of all that a profile says."""
    limits = Resources.from_mapping(named)

    def registered(name: str, value: int) -> None:
        limits[name] = value

    workflow = SimpleNamespace(
        is_main_process=True, local_exec=True, global_resources=limits, register_resource=registered
    )
    share_memory(workflow)
    assert (limits["mem_mb"].value if "mem_mb" in limits else None) == limit


@pytest.mark.parametrize(("main", "local"), [(True, False), (False, True)])
def test_memory_is_no_limit_of_all_jobs_on_a_cluster_or_of_a_job_in_its_own_process(
    main: bool, local: bool, share_memory: Callable[[Any], None]
) -> None:
    limits = Resources.from_mapping({"gpu": 4})
    workflow = SimpleNamespace(is_main_process=main, local_exec=local, global_resources=limits)
    share_memory(workflow)
    assert list(limits) == ["gpu"]


@pytest.mark.slow
@pytest.mark.parametrize(("pack", "jobs"), [(1, 4), (3, 6)])
def test_local_jobs_get_devices_of_their_own_or_share_them_as_asked(
    pack: int, jobs: int, two_gpus: Any, tmp_path: Path
) -> None:
    at_once = 2 * pack
    settings = {"AT_ONCE": str(at_once), "RECOLLECT_LEASES": str(tmp_path / "leases"), "RECOLLECT_PACK": str(pack)}
    profile = [
        "--profile",
        "workflow/profiles/gpu",
        "--resources",
        f"gpu={at_once}",
        "mem_mb=1000000",
        "--cores",
        "64",
        "--config",
        "seeds_together=1",
    ]
    assigned = [f"{name}={value}" for name, value in settings.items()]
    two_gpus.run("env", *assigned, "snakemake", *profile, "--", *RUNS[:jobs])

    held = [line.split() for line in (two_gpus.folder / "held").read_text().splitlines()]
    assert len(held) == jobs and {device for device, *_ in held} == {"cuda"}
    times = {name: [(float(b), float(e)) for _, n, b, e in held if n == name] for name in ("GPU-a", "GPU-b")}
    assert sum(map(len, times.values())) == jobs
    # As many as asked for held a device at the same time, and never more on one.
    most = {name: max(sum(b <= begin < e for b, e in taken) for begin, _ in taken) for name, taken in times.items()}
    assert most == {"GPU-a": pack, "GPU-b": pack}
