"""A real SLURM of three virtual nodes on this machine, which lives as long as the process that started it.

    python tests/workflow/slurm/local_slurm.py snakemake --profile cluster --config scale=smoke

- Nothing is installed into the system and nobody needs to be root: apt-get fetches Debian's packages (and checks their
  signatures), and they are unpacked into the cluster's own folder. Ports are free ones, so clusters do not meet.
- slurmctld, munged and three slurmd run as children of one keeper, which adopts whatever they start. When its standard
  input closes (its parent ended, however it died) it kills them all and removes the folder.
- Two nodes declare a GPU, whose device file is /dev/null: SLURM counts it, and no job can use it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ["slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge"]
NODES = ("node1", "node2", "node3")
WITH_GPU = ("node1", "node2")
PR_SET_CHILD_SUBREAPER = 36
CONF = """
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
PluginDir={plugins}
PlugStackConfig={folder}/plugstack.conf
SlurmctldPort={ctld}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
# Declared, not measured: paper scale asks for more than a small machine has, and stand-ins use none of it.
SlurmdParameters=config_overrides
SlurmdTimeout=10
KillWait=5
MinJobAge=7200
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
GresTypes=gpu
{nodes}
PartitionName=main Nodes=node1,node2,node3 Default=YES MaxTime=INFINITE State=UP
PartitionName=gpu Nodes=node1,node2 MaxTime=INFINITE State=UP
"""


class Unavailable(Exception):
    """SLURM cannot be had here; the message says why."""


# ------------------------------------------------------------------------------------------------ packages


def unpack_packages(folder: Path) -> Path:
    """Fetch Debian's packages of SLURM, and what they need and this machine lacks, and unpack them.

    Returns:
        The folder that stands for `/`.

    Raises:
        Unavailable: no apt-get, or it reaches no archive.
    """
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Unavailable("apt-get and dpkg-deb are not here: SLURM comes from Debian's packages")
    state, cache = folder / "apt" / "state", folder / "apt" / "cache"
    for path in (state / "lists" / "partial", cache / "archives" / "partial"):
        path.mkdir(parents=True)
    apt = ["apt-get", "-q", "-o", f"Dir::State={state}", "-o", f"Dir::Cache={cache}", "-o", "APT::Sandbox::User="]
    apt += ["-o", "Dir::State::status=/var/lib/dpkg/status", "-o", "Acquire::Retries=2"]
    apt += ["-o", "Debug::NoLocking=true"]  # nothing is installed, so it need not wait for who installs
    # --reinstall: also what is installed already, so that it is known where it lies.
    wanted = ["install", "--yes", "--download-only", "--reinstall", "--no-install-recommends", *PACKAGES]
    for command in ([*apt, "update"], [*apt, *wanted]):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise Unavailable(f"`{' '.join(command)}` failed:\n{done.stdout[-1500:]}")
    root = folder / "root"
    for package in sorted((cache / "archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "--extract", package, root], check=True)
    shutil.rmtree(folder / "apt")
    return root


def make_commands(root: Path, folder: Path) -> Path:
    """Commands that run SLURM's own with its libraries and this cluster's configuration, in a folder for PATH."""
    plugins = next(root.glob("usr/lib/*/slurm-wlm"))
    commands = folder / "bin"
    commands.mkdir()
    script = (
        "#!/bin/sh\n"
        f'export SLURM_CONF={folder}/slurm.conf LD_LIBRARY_PATH="{plugins.parent}:{plugins}"\n'
        'exec {program} "$@"\n'
    )
    for program in sorted([*root.glob("usr/bin/*"), *root.glob("usr/sbin/*")]):
        # Debian makes these links when it installs. SLURM asks by its own name which program it is.
        if program.name.endswith("-wlm"):
            link = program.with_name(program.name.removesuffix("-wlm"))
            link.symlink_to(program.name)
            program = link
        command = commands / program.name
        command.write_text(script.format(program=program))
        command.chmod(0o755)
    return commands


# ----------------------------------------------------------------------------------------- the keeper's process


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on just now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def configure(root: Path, folder: Path) -> None:
    """Write everything that the daemons read."""
    import getpass

    host = socket.gethostname().split(".")[0]
    ports = free_ports(len(NODES) + 1)
    nodes = []
    for name, port in zip(NODES, ports[1:], strict=True):
        gpu = "Gres=gpu:a100:1 " if name in WITH_GPU else ""
        address = f"NodeHostname={host} NodeAddr=127.0.0.1 Port={port}"
        nodes.append(f"NodeName={name} {address} CPUs=8 RealMemory=64000 {gpu}State=UNKNOWN")
        (folder / name).mkdir()
    (folder / "state").mkdir()
    plugins = next(root.glob("usr/lib/*/slurm-wlm"))
    known = {"host": host, "user": getpass.getuser(), "folder": folder, "plugins": plugins, "ctld": ports[0]}
    (folder / "slurm.conf").write_text(CONF.format(**known, nodes="\n".join(nodes)))
    (folder / "gres.conf").write_text(f"NodeName={','.join(WITH_GPU)} Name=gpu Type=a100 File=/dev/null\n")
    (folder / "plugstack.conf").touch()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)


class Daemons:
    """The daemons and whatever they start: children and grandchildren of this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, name: str, *command: str) -> None:
        """Start one in the foreground, with its own log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            subprocess.Popen(
                [str(self.folder / "bin" / command[0]), *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start_node(self, name: str) -> None:
        """Start (again) the daemon of one node."""
        self.start(name, "slurmd", "-D", "-N", name, "-d", str(self.folder / "bin" / "slurmstepd"))

    def start_all(self) -> None:
        """Start everything."""
        at = self.folder
        munge = ["--foreground", "--force", f"--socket={at}/munge.socket", f"--key-file={at}/munge.key"]
        munge += [f"--pid-file={at}/munged.pid", f"--seed-file={at}/munged.seed", f"--log-file={at}/munged.log"]
        self.start("munged", "munged", *munge)
        wait_for(lambda: (at / "munge.socket").exists(), 20, f"munged did not start; see {at}/munged.log")
        self.start("slurmctld", "slurmctld", "-D")
        for name in NODES:
            self.start_node(name)

    def kill_all(self) -> None:
        """Kill every process beneath this one, until none is left: jobs are adopted when their parents die."""
        while children := [pid for pid, parent in parents().items() if parent == os.getpid()]:
            for pid in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in children:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)


def parents() -> dict[int, int]:
    """Every process of this machine -> its parent."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            found[int(entry.parent.name)] = int(entry.read_text().rsplit(")", 1)[1].split()[1])
    return found


def wait_for(condition: object, seconds: float, otherwise: str) -> None:
    """Wait until it holds, or raise."""
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        if time.monotonic() > end:
            raise TimeoutError(otherwise)
        time.sleep(0.2)


def keep() -> None:
    """Hold a cluster until standard input closes; a line with a node's name starts that node's daemon again."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # a socket's path must be short
    daemons = Daemons(folder)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal's Ctrl-C is for the command; the end of input is the sign
    try:
        try:
            root = unpack_packages(folder)
            make_commands(root, folder)
            configure(root, folder)
            daemons.start_all()
        except (Unavailable, OSError, subprocess.SubprocessError, TimeoutError) as error:
            print(json.dumps({"unavailable": str(error)}), flush=True)
            return
        print(json.dumps({"folder": str(folder)}), flush=True)
        for line in sys.stdin:
            daemons.start_node(line.strip())
    finally:
        daemons.kill_all()
        shutil.rmtree(folder, ignore_errors=True)


# ------------------------------------------------------------------------------------------- who uses it


class LocalSlurm:
    """A running cluster.

    Args:
        folder: where its configuration, logs and commands lie.
        keeper: the process that holds it.
    """

    def __init__(self, folder: Path, keeper: subprocess.Popen[str]) -> None:
        self.folder, self.keeper = folder, keeper

    @property
    def environment(self) -> dict[str, str]:
        """This process's, with SLURM's commands found first."""
        return {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}

    def ask(self, command: str, *arguments: str) -> str:
        """What one of SLURM's commands says."""
        said = subprocess.run([self.folder / "bin" / command, *arguments], capture_output=True, text=True, timeout=60)
        if said.returncode:
            raise RuntimeError(f"{command} {' '.join(arguments)}: {said.stderr}")
        return said.stdout

    def nodes(self) -> dict[str, str]:
        """Node -> its state."""
        return dict(line.split() for line in self.ask("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T").splitlines())

    def jobs(self) -> list[dict[str, str]]:
        """Every job since the cluster started, as `scontrol show job` describes it."""
        lines = self.ask("scontrol", "--oneliner", "show", "jobs").splitlines()
        words = [[word for word in line.split(" ") if "=" in word] for line in lines if line.startswith("JobId")]
        return [dict(word.split("=", 1) for word in line) for line in words]

    def queue(self) -> list[str]:
        """The ids of jobs that wait or run."""
        return self.ask("squeue", "-h", "-o", "%i").split()

    def processes(self, job: str) -> list[int]:
        """The processes of a job on its node, SLURM's own for it too."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                inside = f"SLURM_JOB_ID={job}\0".encode() in (entry / "environ").read_bytes()
                # SLURM_CONF tells apart the steps of two clusters.
                if inside or (entry / "cmdline").read_bytes().startswith(f"slurmstepd: [{job}.".encode()):
                    found.append(int(entry.name))
        return found

    def break_node(self, name: str) -> None:
        """As if its power went: daemon and jobs are gone at once."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((self.folder / f"{name}.pid").read_text()), signal.SIGKILL)
        for job in self.ask("squeue", "-h", "-w", name, "-o", "%A").split():
            for pid in self.processes(job):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def mend_node(self, name: str) -> None:
        """Its daemon starts again, and the node takes jobs."""
        assert self.keeper.stdin is not None
        print(name, file=self.keeper.stdin, flush=True)
        wait_for(lambda: self.nodes()[name].rstrip("*") in ("idle", "mixed", "allocated"), 60, f"{name} stays down")


@contextlib.contextmanager
def local_slurm() -> Iterator[LocalSlurm]:
    """A cluster for as long as the block lasts.

    Raises:
        Unavailable: SLURM cannot be had here.
    """
    keeper = subprocess.Popen(
        [sys.executable, __file__, "--keep"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert keeper.stdin is not None and keeper.stdout is not None
    try:
        said = json.loads(keeper.stdout.readline() or '{"unavailable": "the keeper died"}')
        if "unavailable" in said:
            raise Unavailable(said["unavailable"])
        cluster = LocalSlurm(Path(said["folder"]), keeper)

        def idle() -> bool:
            with contextlib.suppress(RuntimeError):
                return set(cluster.nodes().values()) == {"idle"}
            return False

        wait_for(idle, 60, f"the nodes did not come up; see the logs in {cluster.folder}")
        yield cluster
    finally:
        keeper.stdin.close()
        keeper.wait(60)


def main() -> int:
    """Run a command on a cluster of its own."""
    if sys.argv[1:] == ["--keep"]:
        keep()
        return 0
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    try:
        with local_slurm() as cluster:
            return subprocess.call(sys.argv[1:], env=cluster.environment)
    except Unavailable as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
