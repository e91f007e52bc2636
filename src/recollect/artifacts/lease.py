"""A device, or several, for this job alone: two local jobs never meet on one GPU by accident.

Snakemake counts GPUs but does not say which; without more, all jobs land on device 0. Here each job takes a lock file
per device (flock: the kernel lets it go when the job dies, even by SIGKILL) and narrows ``CUDA_VISIBLE_DEVICES`` to it.

- A ``CUDA_VISIBLE_DEVICES`` that is already set (SLURM, or the user) is the list to choose from.
- Lock files are named by the device's UUID where nvidia-smi tells it, so that index and UUID mean one device.
- Users of one machine meet on its GPUs, so their lock files stand in one folder (``/tmp``), open to all. Nothing is ever
  written to them and no link is followed, so that a file that another user put there does no harm.
- ``pack=N`` shares a device among N jobs that all say so; a job with ``pack=1`` never meets any of them.
- A job that needs several devices takes all of them or none, so that no two wait for each other; while single ones come free
  and are taken again by others, it waits.
- torch is not imported: the variable must be set before CUDA starts. CUDA reads it once in a process, so a later lease of a
  notebook is of the devices with which CUDA has begun there.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Literal

from recollect.artifacts.lock import take
from recollect.settings.errors import UserError

log = logging.getLogger(__name__)
VARIABLE = "CUDA_VISIBLE_DEVICES"
FOLDER_VARIABLE = "RECOLLECT_LEASES"
AUTO_VARIABLE = "RECOLLECT_DEVICE"  # cpu: what "auto" means also where a scheduler gave GPUs
_INDICES = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS")  # "0" is the first GPU
_COUNTS = ("SLURM_GPUS", "SLURM_GPUS_ON_NODE")  # "0" is none
_POLL_SECONDS = 0.1
_begun: list[str] = []
"""The devices of the lease under which CUDA has begun in this process."""


@contextmanager
def device_lease(
    wanted: Literal["cpu", "cuda", "auto"],
    pack: int = 1,
    lease_folder: str | Path | None = None,
    devices: list[str] | None = None,
    *,
    count: int = 1,
    wait_seconds: float | None = None,
) -> Iterator[str]:
    """Hold devices for as long as the block lasts; yields the torch device string, "cpu" or "cuda".

    Args:
        wanted: "cuda" insists on a GPU, "cpu" takes none. "auto" takes one where there is one, and insists where SLURM gave one:
            such a job would hold a GPU for days and compute on a CPU. With ``RECOLLECT_DEVICE=cpu`` "auto" is "cpu".
        pack: how many jobs may share one device; they spread over the devices before they share. Every job on a device
            should name the same number.
        lease_folder: where the lock files stand; local to the machine. Default: ``$RECOLLECT_LEASES`` or ``/tmp``.
        devices: names for ``CUDA_VISIBLE_DEVICES`` to choose from; default: what the machine has.
        count: how many devices, where there are any.
        wait_seconds: how long to wait while all are taken; None waits until one is free.

    Raises:
        UserError: there is no GPU where one is insisted on, there are some and not enough, an unknown `wanted`, none got free in
            time, or the folder or a lock file in it cannot be used.
    """
    if pack < 1:
        raise UserError(f"{pack} jobs cannot share a device", where="pack", do="name at least 1")
    found = usable(wanted, devices)
    if not found:
        yield "cpu"
        return
    if cuda_has_begun():
        found = (_begun or found)[:count]
    if len(found) < count:
        raise UserError(
            f"{count} GPUs are asked for and there are {len(found)}",
            where=f"device: {wanted}",
            do="use a machine that has as many, run on the CPU, or lower the run's number of devices; "
            "a notebook that has begun with fewer must start anew",
        )
    named = lease_folder or os.environ.get(FOLDER_VARIABLE)
    folder = Path(named) if named else _shared_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        begin = folder / ("recollect-" if named else _prefix())
        taken, held = _wait_for(count, found, pack, begin, wait_seconds)
    except OSError as error:
        raise UserError(
            f"the lock files of GPUs cannot be used: {error.strerror}",
            where=error.filename or folder,
            do=f"put a folder there in which all users may write, or name one by {FOLDER_VARIABLE}; of a single file, have"
            " its owner remove it (jobs that look in different folders can meet on a GPU)",
        ) from error
    try:
        with _seen_alone(taken):
            yield "cuda"
    finally:
        for descriptor in held:
            os.close(descriptor)


@contextmanager
def _seen_alone(devices: list[str]) -> Iterator[None]:
    """CUDA that begins in this block sees these devices and no others, from then on."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = ",".join(devices)
    try:
        yield
    finally:
        if cuda_has_begun() and not _begun:
            _begun.extend(devices)
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


def usable(wanted: str, devices: list[str] | None = None) -> list[str]:
    """The devices that are meant by `wanted`, free or not; none: the CPU. For `devices` and errors see `device_lease`."""
    if wanted not in ("cpu", "cuda", "auto"):
        raise UserError(f"unknown device {wanted!r}", where="device", do="use cpu, cuda or auto")
    if wanted == "auto" and (meant := os.environ.get(AUTO_VARIABLE)):
        if meant != "cpu":
            raise UserError(f"device '{meant}' is not known", where=AUTO_VARIABLE, do="set it to cpu, or not at all")
        wanted = "cpu"
    found = [] if wanted == "cpu" else _cuda_devices() if devices is None else list(dict.fromkeys(devices))
    if found:
        return found
    if wanted == "cuda":
        raise UserError(
            f"a GPU is asked for and there is none ({_why_none(devices)})",
            where="device: cuda",
            do="run with device cpu or auto, or on a machine where `nvidia-smi -L` lists a GPU",
        )
    if wanted == "auto" and _slurm_gave_one():
        raise UserError(
            f"SLURM gave this job a GPU that cannot be used ({_why_none(devices)})",
            where="device: auto",
            do=f"install PyTorch for GPUs (`make setup`, not for the family cpu), or set {AUTO_VARIABLE}=cpu to do without",
        )
    return []


def _slurm_gave_one() -> bool:
    counted = any(os.environ.get(name, "0") not in ("", "0") for name in _COUNTS)
    return counted or any(os.environ.get(name) for name in _INDICES)


def cuda_has_begun() -> bool:
    """Whether this process has computed on a GPU."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def _wait_for(
    count: int, devices: list[str], pack: int, begin: Path, wait_seconds: float | None
) -> tuple[list[str], list[int]]:
    deadline = None if wait_seconds is None else time.monotonic() + wait_seconds
    told = False
    while True:
        taken, held = _take(count, devices, pack, begin)
        if taken:
            return taken, held
        if deadline is not None and time.monotonic() >= deadline:
            few = f"all {len(devices)} devices are taken by other jobs"
            few = few if count == 1 else f"fewer than {count} of {len(devices)} devices are free of other jobs"
            raise UserError(
                f"{few} ({pack} per device)",
                where=begin.parent,
                do="run fewer jobs at once (snakemake --resources gpu=N), or share a device on purpose with pack",
            )
        if not told:
            log.info(
                "waiting for %s among %s", "a free device" if count == 1 else f"{count} devices", ", ".join(devices)
            )
            told = True
        time.sleep(_POLL_SECONDS)


def _take(count: int, devices: list[str], pack: int, begin: Path) -> tuple[list[str], list[int]]:
    """So many devices, in their order, and the descriptors that hold them; none where there are not as many."""
    taken: dict[str, list[int]] = {}
    try:
        for slot in range(pack):
            for device in devices:
                if device not in taken and (held := _try(device, slot, pack, begin)) is not None:
                    taken[device] = held
                if len(taken) == count:
                    found, taken = taken, {}
                    return sorted(found, key=devices.index), [one for each in found.values() for one in each]
        return [], []
    finally:
        for held in taken.values():
            for descriptor in held:
                os.close(descriptor)


def _try(device: str, slot: int, pack: int, begin: Path) -> list[int] | None:
    """Take a slot of a device: the device's own lock (shared when packed), then the slot's. None when taken."""
    name = begin.name + re.sub(r"[^A-Za-z0-9-]", "_", device)
    locks = [(begin.with_name(f"{name}.lock"), fcntl.LOCK_EX if pack == 1 else fcntl.LOCK_SH)]
    if pack > 1:
        locks.append((begin.with_name(f"{name}.slot{slot}.lock"), fcntl.LOCK_EX))
    held: list[int] = []
    try:
        for path, operation in locks:
            held.append(_opened(path))
            if not take(held[-1], path, operation):
                return None
        for descriptor in held:
            with suppress(OSError):  # what is old in /tmp may be cleared away, and with it the lock
                os.utime(descriptor)
        found, held = held, []
        return found
    finally:
        for descriptor in held:
            os.close(descriptor)


def _opened(path: Path) -> int:
    """Open a lock file that every user of the machine can open; made when missing. Links are refused."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    while True:
        with suppress(FileNotFoundError):  # without O_CREAT, with which the kernel may refuse the file of another user
            return os.open(path, flags)
        with suppress(FileExistsError):
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(descriptor, 0o666)  # whatever the umask
            return descriptor


def device_model() -> str:
    """What the first device is that this process may use, ``NVIDIA H200``; empty when torch cannot use any. CUDA does not begin."""
    answer = _nvidia_smi()
    first = _cuda_devices(answer)[:1]
    models = re.findall(r"^GPU \d+: (.*) \(UUID: ([^)\s]+)\)", answer, flags=re.MULTILINE)
    return next((model for model, uuid in models if [uuid] == first), "")


def _cuda_devices(answer: str | None = None) -> list[str]:
    """Names for ``CUDA_VISIBLE_DEVICES`` of the devices this process may use; empty when torch cannot use any.

    Raises UserError: the variable names a number that no device has. CUDA would leave it out, and all that follow, in silence.
    """
    if _torch_is_cpu_only():
        return []
    listed = parse_nvidia_smi(_nvidia_smi() if answer is None else answer)
    visible = os.environ.get(VARIABLE)
    if visible is None:
        return [device for devices in listed for device in devices]
    names: dict[str, None] = {}  # each device once
    for name in (part.strip() for part in visible.split(",")):
        if name == "" or name.startswith("-"):
            break  # CUDA itself ignores what follows an invalid entry
        if name.isdigit() and 0 < len(listed) <= int(name):
            raise UserError(
                f"there is no GPU {name}: nvidia-smi lists {len(listed)}, counted from 0",
                where=f"{VARIABLE}={visible}",
                do=f"name numbers up to {len(listed) - 1}, or UUIDs of `nvidia-smi -L`",
            )
        whole = len(listed[int(name)]) == 1 if name.isdigit() and int(name) < len(listed) else False
        names[listed[int(name)][0] if whole else name] = None
    return list(names)


def _nvidia_smi() -> str:
    """The answer of ``nvidia-smi -L``; empty where it does not work."""
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


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


def _shared_folder() -> Path:
    """Where all users of this machine may write, whatever their TMPDIR."""
    folder = Path("/tmp")
    return folder if os.access(folder, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def _prefix() -> str:
    """How names of lock files begin; under SLURM with its job (SLURM keeps jobs apart; there "0" is many devices)."""
    job = os.environ.get("SLURM_JOB_ID")
    return f"recollect-slurm-{job}-" if job else "recollect-"
