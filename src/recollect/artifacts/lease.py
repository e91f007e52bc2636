"""A device for this job alone: two local jobs never meet on one GPU by accident.

Snakemake counts GPUs but does not say which; without more, all jobs land on device 0. Here each job takes a lock file
per device (flock: the kernel lets it go when the job dies, even by SIGKILL) and narrows ``CUDA_VISIBLE_DEVICES`` to it.

- A ``CUDA_VISIBLE_DEVICES`` that is already set (SLURM, or the user) is the list to choose from.
- Lock files are named by the device's UUID where nvidia-smi tells it, so that index and UUID mean one device.
- ``pack=N`` shares a device among N jobs that all say so; a job with ``pack=1`` never meets any of them.
- torch is not imported: the variable must be set before CUDA starts.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Literal

from recollect.artifacts.lock import take
from recollect.settings.errors import UserError

log = logging.getLogger(__name__)
VARIABLE = "CUDA_VISIBLE_DEVICES"
FOLDER_VARIABLE = "RECOLLECT_LEASES"
_POLL_SECONDS = 0.1


@contextmanager
def device_lease(
    wanted: Literal["cpu", "cuda", "auto"],
    pack: int = 1,
    lease_folder: str | Path | None = None,
    devices: list[str] | None = None,
    *,
    wait_seconds: float | None = None,
) -> Iterator[str]:
    """Hold one device for as long as the block lasts; yields the torch device string, "cpu" or "cuda".

    Args:
        wanted: "cuda" insists on a GPU, "auto" takes one where there is one, "cpu" takes none.
        pack: how many jobs may share one device; they spread over the devices before they share. Every job on a device
            should name the same number.
        lease_folder: where the lock files stand; local to the machine. Default: ``$RECOLLECT_LEASES`` or a folder of
            this user under the temporary folder.
        devices: names for ``CUDA_VISIBLE_DEVICES`` to choose from; default: what the machine has.
        wait_seconds: how long to wait while all are taken; None waits until one is free.

    Raises:
        UserError: "cuda" is wanted and there is none, an unknown `wanted`, or no device got free in time.
    """
    if wanted not in ("cpu", "cuda", "auto") or pack < 1:
        what = f"device '{wanted}' with pack {pack} is not known"
        raise UserError(what, where="device", do="use cpu, cuda or auto, and a pack of at least 1")
    found = [] if wanted == "cpu" else _cuda_devices() if devices is None else list(dict.fromkeys(devices))
    if not found:
        if wanted == "cuda":
            raise UserError(
                f"a GPU is asked for and there is none ({_why_none(devices)})",
                where="device: cuda",
                do="run with device cpu or auto, or on a machine where `nvidia-smi -L` lists a GPU",
            )
        yield "cpu"
        return
    folder = Path(lease_folder or os.environ.get(FOLDER_VARIABLE) or _default_folder())
    folder.mkdir(parents=True, exist_ok=True)
    device, held = _wait_for_one(found, pack, folder, wait_seconds)
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = device
    try:
        yield "cuda"
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before
        for descriptor in held:
            os.close(descriptor)


def _wait_for_one(devices: list[str], pack: int, folder: Path, wait_seconds: float | None) -> tuple[str, list[int]]:
    deadline = None if wait_seconds is None else time.monotonic() + wait_seconds
    told = False
    while True:
        for slot in range(pack):
            for device in devices:
                held = _try(device, slot, pack, folder)
                if held is not None:
                    return device, held
        if deadline is not None and time.monotonic() >= deadline:
            raise UserError(
                f"all {len(devices)} devices are taken by other jobs ({pack} per device)",
                where=folder,
                do="run fewer jobs at once (snakemake --resources gpu=N), or share a device on purpose with pack",
            )
        if not told:
            log.info("waiting for a free device among %s", ", ".join(devices))
            told = True
        time.sleep(_POLL_SECONDS)


def _try(device: str, slot: int, pack: int, folder: Path) -> list[int] | None:
    """Take a slot of a device: the device's own lock (shared when packed), then the slot's. None when taken."""
    name = re.sub(r"[^A-Za-z0-9-]", "_", device)
    locks = [(folder / f"{name}.lock", fcntl.LOCK_EX if pack == 1 else fcntl.LOCK_SH)]
    if pack > 1:
        locks.append((folder / f"{name}.slot{slot}.lock", fcntl.LOCK_EX))
    held: list[int] = []
    for path, operation in locks:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        held.append(descriptor)
        if not take(descriptor, path, operation):
            for each in held:
                os.close(each)
            return None
    return held


def _cuda_devices() -> list[str]:
    """Names for ``CUDA_VISIBLE_DEVICES`` of the devices this process may use; empty when torch cannot use any."""
    if _torch_is_cpu_only():
        return []
    listed = _nvidia_smi()
    visible = os.environ.get(VARIABLE)
    if visible is None:
        return [device for devices in listed for device in devices]
    names: list[str] = []
    for name in (part.strip() for part in visible.split(",")):
        if name == "" or name.startswith("-"):
            break  # CUDA itself ignores what follows an invalid entry
        whole = len(listed[int(name)]) == 1 if name.isdigit() and int(name) < len(listed) else False
        names.append(listed[int(name)][0] if whole else name)
    return names


def _nvidia_smi() -> list[list[str]]:
    """UUIDs by device index; a device cut into MIG slices lists the slices."""
    try:
        answer = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return parse_nvidia_smi(answer)


def parse_nvidia_smi(answer: str) -> list[list[str]]:
    """The UUIDs in the answer of ``nvidia-smi -L``, by device index (MIG slices in place of their device)."""
    devices: list[list[str]] = []
    for kind, uuid in re.findall(r"^\s*(GPU|MIG) .*\(UUID: ([^)\s]+)\)", answer, flags=re.MULTILINE):
        if kind == "GPU":
            devices.append([uuid])
        elif devices:
            slices = [name for name in devices[-1] if name.startswith("MIG")]
            devices[-1] = [*slices, uuid]
    return devices


def _torch_is_cpu_only() -> bool:
    try:
        return metadata.version("torch").endswith("+cpu")
    except metadata.PackageNotFoundError:
        return False


def _why_none(devices: list[str] | None) -> str:
    if devices is not None:
        return "the list of devices is empty"
    if _torch_is_cpu_only():
        return "the installed torch is the build for CPUs only"
    if VARIABLE in os.environ:
        return f"{VARIABLE} is '{os.environ[VARIABLE]}'"
    return "nvidia-smi lists none"


def _default_folder() -> Path:
    """Of this user on this machine; under SLURM of this job (SLURM keeps jobs apart; there "0" is many devices)."""
    folder = Path(tempfile.gettempdir()) / f"recollect-leases-{os.getuid()}"
    job = os.environ.get("SLURM_JOB_ID")
    return folder / f"slurm-{job}" if job else folder
