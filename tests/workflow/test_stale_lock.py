"""What a killed Snakemake left is cleared, and what is another host's stays."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path
from typing import Any

import preloaded
import pytest

from recollect.settings.errors import UserError

SCRIPT = Path(__file__).resolve().parents[2] / "workflow/stale_lock.py"


@pytest.fixture
def stale_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, in an empty folder."""
    specification = importlib.util.spec_from_file_location("stale_lock", SCRIPT)
    assert specification and specification.loader
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    monkeypatch.chdir(tmp_path)
    return module


def test_a_folder_that_cannot_be_written_says_what_works_there(stale_lock: Any, tmp_path: Path) -> None:
    (tmp_path / ".snakemake").touch()  # permissions would not stop root, as whom tests may run
    with pytest.raises(UserError, match=r"(?s)this folder cannot be written.*`recollect claims`"):
        stale_lock.clear()


def test_only_own_locks_are_cleared_and_one_that_goes_meanwhile_is_no_error(stale_lock: Any, tmp_path: Path) -> None:
    locks = tmp_path / ".snakemake/locks"
    locks.mkdir(parents=True)
    own, other, going = (locks / name for name in ("0.input.lock", "0.output.lock", "1.input.lock"))
    own.touch()
    other.touch()
    going.symlink_to(tmp_path / "nowhere")  # is listed, and has no time: as one that is removed in between
    first = stale_lock.clear()
    stale_lock.sign(first, [own, going])
    os.close(stale_lock.clear())
    assert own.exists(), "the Snakemake whose lock it is lives"
    os.close(first)
    os.close(stale_lock.clear())
    assert not own.exists() and other.exists() and going.is_symlink()


def test_a_lock_that_another_host_signed_stays(
    stale_lock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / ".snakemake/locks/0.input.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    with monkeypatch.context() as there:
        there.setattr(stale_lock.platform, "node", lambda: "another-host")
        first = stale_lock.clear()
        stale_lock.sign(first, [lock])
    os.close(first)  # flock does not reach here
    os.close(stale_lock.clear())
    assert lock.exists()


def test_a_lock_of_a_signed_name_that_was_made_later_stays(stale_lock: Any, tmp_path: Path) -> None:
    lock = tmp_path / ".snakemake/locks/0.input.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    first = stale_lock.clear()
    stale_lock.sign(first, [lock])
    os.close(first)
    os.utime(lock, ns=(1, 1))  # another host has removed it, and made its own
    os.close(stale_lock.clear())
    assert lock.exists()


def test_a_snakemake_that_dies_before_its_first_job_has_signed_its_lock(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(
        f"""
import os
import sys

sys.path.insert(0, "{SCRIPT.parent}")
import snakemake_internals
import stale_lock

alive = stale_lock.clear()
snakemake_internals.sign_lock_files(lambda locks: stale_lock.sign(alive, locks))


onstart:
    os.kill(os.getpid(), 9)


rule one:
    output: "made"
    shell: "touch {{output}}"
"""
    )
    for _ in range(2):  # the second clears what the first left: else it could not come as far
        words = ["--cores", "1", "--quiet", "all"]
        done = preloaded.run("snakemake", words, cwd=tmp_path, env=dict(os.environ), timeout=300)
        assert done.returncode == -signal.SIGKILL
