"""Workers in processes of a Ray cluster, like `layerprobe.jobs.processes` on one machine.

Knows nodes and their resources, not the content of jobs. Ray is imported when the first process is needed. A killed
process, or node, loses only its current jobs, which restart elsewhere; a node whose store fails, or that
sees other files, is skipped with one line. Other users may share the cluster: busy resources are waited
for, and nodes that join, or come back, take part.
"""

import collections
import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerprobe.checks import check_extra
from layerprobe.errors import LayerProbeError, WorkerError, option
from layerprobe.files.atomic import TEMPORARY, make_directory, write_whole
from layerprobe.jobs.crew import Begin, Crew, Message, Share, Worker, Workers, attempt, forward_logs
from layerprobe.versions import __version__

logger = logging.getLogger(__name__)

TRIES = 5
"""How often a job may lose its process: more often than on one machine, because whole nodes can fail."""
ANSWER_SECONDS = 30
"""Time for a cluster to answer."""
NODE_SECONDS = 60
"""Time to wait for a first node."""
LOST_SECONDS = 5.0
"""Time after which a silent head, or this machine's node, counts as lost. Later, Ray 2.60 ends the
calling process without a message: after 60 seconds without a head, and 10 without this machine's node."""
REFRESH_SECONDS = 2.0
"""Time between two updates of the nodes."""
PROBE = f"{TEMPORARY}ray-"
"""Prefix of the files that show whether a node sees a folder."""
OBJECT_STORE = 200 * 2**20
"""Bytes of shared memory for a cluster on this machine; jobs store their data on disk."""


# ---- the cluster --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Yield the module of Ray, connected; an existing connection is used and stays open."""
    if address == "local":  # only for our own cluster
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    check_extra("ray", needed_by=f"the cluster {address}")
    import ray
    import ray._private.worker as private

    if ray.is_initialized():
        yield ray
        return
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        settings |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
    else:
        _check_answers(address)
    # Ray 2.60 prints lost nodes to stdout, where results go; the crew reports them itself
    printing, private.print_to_stdstream = private.print_to_stdstream, lambda *arguments, **options: None
    at_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        try:
            ray.init(address=address, **settings)
        except Exception as error:
            raise LayerProbeError(f"the Ray cluster at {address} cannot be used: {_line(str(error))}") from error
        if at_sigterm is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, at_sigterm)  # Ray's handler would print a C++ trace
        yield ray
    finally:
        ray.shutdown()
        private.print_to_stdstream = printing


def _check_answers(address: str) -> None:
    """Connect in a separate process: without an answer, `ray.init` waits for minutes, or ends its process."""
    code = "import logging, ray, sys\ntry: ray.init(sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)\n"
    code += "except BaseException as error: sys.exit(f'{type(error).__name__}: {error}')"
    try:
        tried = subprocess.run(
            [sys.executable, "-c", code, address], capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise LayerProbeError(
            f"expected a Ray cluster at {address}, got no answer within {ANSWER_SECONDS} seconds: check the address "
            "and the network, or start one with `ray start --head`"
        ) from None
    if tried.returncode:
        raise LayerProbeError(f"the Ray cluster at {address} cannot be used: {_line(tried.stderr)}")


def _line(text: str) -> str:
    """Return the last paragraph of one of Ray's messages on one line; for an ended process, how it ended."""
    last = text.strip().rpartition("\n\n")[-1].rpartition("exit detail: ")[-1]
    return " ".join(last.split()) or "no reason was given"


@contextlib.contextmanager
def _probes(folders: Sequence[Path]) -> Iterator[list[Path]]:
    """Create a new file in each folder; every node must find it."""
    probes: list[Path] = []
    try:
        for folder in dict.fromkeys(folder.absolute() for folder in folders):
            make_directory(folder)
            probes.append(folder / f"{PROBE}{secrets.token_hex(16)}")
            write_whole(probes[-1], b"")
        yield probes
    finally:
        for file in probes:
            with contextlib.suppress(OSError):
                file.unlink()


# ---- the crew -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Node:
    """The usable resources of one node."""

    id: str
    name: str
    cpus: int
    gpus: int

    def slots(self, cpus: int, gpus: int) -> int:
        """Return the number of processes that fit."""
        return min(self.cpus // cpus, self.gpus // gpus if gpus else self.cpus)


class _Actor(Worker):
    """A worker process on the cluster."""

    def __init__(self, node: _Node, actor: Any, reference: Any) -> None:
        super().__init__()
        self.node, self.actor = node, actor
        self.reference = reference
        """Reference of its current call; None while idle."""
        self.name = f"a process on the node {node.name}"


class RayProcesses(Crew):
    """Processes on the nodes of a cluster, each with as many processors as possible if all are to fit."""

    tries = TRIES

    def __init__(self, workers: Workers, begin: Begin, setting: Any, *, most: int) -> None:
        super().__init__(workers, begin, setting, most=most)
        self.left_out: dict[str, Exception] = {}
        """Reason for skipping a node, by its id."""
        self.unready: collections.Counter[str] = collections.Counter()
        """Number of processes that ended before they were ready, by the id of their node."""
        self.opened = contextlib.ExitStack()
        self.ray: Any = None
        self.lost = False
        """Whether the cluster is lost: calls of Ray then do not return."""

    def _connect(self) -> None:
        address = str(self.spec.address)
        self.ray = ray = self.opened.enter_context(_connected(address))
        context = ray.get_runtime_context()
        here = next(info for info in ray.nodes() if info["NodeID"] == str(context.get_node_id()))
        head, _, port = str(context.gcs_address).rpartition(":")
        self.doors = (head, int(port)), (here["NodeManagerAddress"], here["NodeManagerPort"])
        probes = self.opened.enter_context(_probes(self.spec.folders))
        self.nodes = self._wait_for_nodes()
        self.cpus = processors_a_job([node.cpus for node in self.nodes], self.spec.count, gpus=self.spec.gpus)
        share = Share(threads=self.cpus, device=self.spec.devices[0].partition(":")[0])
        self.beginning = (
            ray.put(self.setting),
            self.begin,
            share,
            (str(Path.cwd()), probes, __version__, option("cache_dir")),
        )
        self.looked = self.ready_since = time.monotonic()

    def hire(self, n_jobs: int) -> None:
        """Start processes where they fit, the emptiest node first."""
        if self.ray is None:
            self._connect()
        self._check_answers()
        if time.monotonic() > self.looked + REFRESH_SECONDS or not self.workers:
            self.nodes, self.looked = [node for node in self._alive() if node.id not in self.left_out], time.monotonic()
            if not self.nodes and not self.workers:
                self.nodes = self._wait_for_nodes()
        used = collections.Counter(worker.node.id for worker in self.workers)
        free = {node: node.slots(self.cpus, self.spec.gpus) - used[node.id] for node in self.nodes}
        for _ in range(min(n_jobs, self.spec.count or n_jobs) - len(self.workers)):
            node = max(free, key=lambda node: free[node], default=None)
            if node is None or free[node] < 1:
                return
            free[node] -= 1
            self.workers.append(self._begun(node))

    def _begun(self, node: _Node) -> _Actor:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        placement = NodeAffinitySchedulingStrategy(node.id, soft=False)
        served = self.ray.remote(_Served)
        actor = served.options(num_cpus=self.cpus, num_gpus=self.spec.gpus, scheduling_strategy=placement).remote()
        return _Actor(node, actor, actor.start.remote(*self.beginning))

    def give(self, worker: _Actor, job: Any, part: contextlib.AbstractContextManager[object]) -> None:
        """Send a job."""
        worker.reference = worker.actor.work.remote(job)

    def messages(self, seconds: float | None) -> Iterator[Message]:
        """Wait until jobs have ended, or there is something else to do; yield the messages."""
        self._check_answers()
        at = {worker.reference: worker for worker in self.workers if worker.reference is not None}
        wait = REFRESH_SECONDS if seconds is None else min(REFRESH_SECONDS, seconds or 0.01)
        if at:
            self.ray.wait(list(at), timeout=wait)
        else:
            time.sleep(wait)
        done, _ = self.ray.wait(list(at), num_returns=len(at), timeout=0) if at else ([], [])
        if any(worker.ready for worker in self.workers):
            self.ready_since = time.monotonic()
        elif time.monotonic() > self.ready_since + NODE_SECONDS:
            self.log(logging.WARNING, "the Ray cluster has not started a process yet: its processors may be busy")
        for reference in done:
            yield self._message(at[reference])

    def _message(self, worker: _Actor) -> Message:
        try:
            kind, value, logged = self.ray.get(worker.reference)
        except self.ray.exceptions.RayError as error:
            kind, value, logged = "ended", error, []
        worker.reference = None
        for level, line in logged:
            self.log(level, line)
        if kind == "ready":
            self.unready.pop(worker.node.id, None)
        return worker, kind, value

    def dismiss(self, worker: _Actor, kind: str, value: Any) -> None:
        """End a process; skip its node if no process there could do any job."""
        self._kill(worker.actor)
        self.looked = 0.0  # its node may be lost
        if kind == "unfit":
            self.workers.remove(worker)
            self._leave_out(worker.node, value)
            return
        super().dismiss(worker, kind, value)
        if kind == "ended" and not worker.ready:
            self.unready[worker.node.id] += 1
            if self.unready[worker.node.id] == TRIES:
                why = f"its processes end before they are ready: {_line(str(value))}"
                self._leave_out(worker.node, WorkerError(why))

    def close(self) -> None:
        """End all processes, and the connection if it was made here."""
        for worker in self.workers:
            self._kill(worker.actor)
        self.opened.close()
        self.workers, self.ray = [], None

    def _check_answers(self) -> None:
        """Raise LayerProbeError if the cluster's head or this machine's node has not answered for some seconds."""
        end = time.monotonic() + LOST_SECONDS
        for door in self.doors:
            while True:
                try:
                    socket.create_connection(door, timeout=REFRESH_SECONDS).close()
                    break
                except OSError as error:
                    self.lost = time.monotonic() > end
                    if self.lost:
                        raise LayerProbeError(
                            f"the Ray cluster at {self.spec.address} has ended: {door[0]}:{door[1]} does not answer "
                            f"({error.strerror or error}): restart it with `ray start --head`; finished runs are "
                            "not repeated"
                        ) from None
                    time.sleep(0.5)

    def _kill(self, actor: Any) -> None:
        if self.lost:
            return
        with contextlib.suppress(Exception):  # the actor or Ray may be gone
            self.ray.kill(actor)

    # ---- nodes -------------------------------------------------------------------------------------------

    def _alive(self) -> list[_Node]:
        """Return the nodes with the resources for a job."""
        nodes = []
        for info in self.ray.nodes():
            has, name = info["Resources"], f"{info['NodeManagerHostname']} ({info['NodeID'][:8]})"
            node = _Node(info["NodeID"], name, int(has.get("CPU", 0)), int(has.get("GPU", 0)))
            if info["Alive"] and node.cpus and node.gpus >= self.spec.gpus:
                nodes.append(node)
        return nodes

    def _wait_for_nodes(self) -> list[_Node]:
        end = time.monotonic() + NODE_SECONDS
        while not (nodes := [node for node in self._alive() if node.id not in self.left_out]):
            if time.monotonic() > end:
                takes = "a processor and a GPU" if self.spec.gpus else "a processor"
                raise LayerProbeError(
                    f"expected a node with {takes} in the Ray cluster at {self.spec.address}, got none within "
                    f"{NODE_SECONDS} seconds: see `ray status`"
                )
            self.log(logging.WARNING, "no node of the Ray cluster can take a job at present: waiting for one")
            time.sleep(0.5)
        return nodes

    def _leave_out(self, node: _Node, error: Exception) -> None:
        self.left_out[node.id] = error
        self.nodes = [other for other in self.nodes if other != node]
        if not any(alive.id not in self.left_out for alive in self._alive()):
            raise error.with_traceback(None)
        self.log(logging.WARNING, f"the node {node.name} is skipped: {error}")


def processors_a_job(nodes: Sequence[int], workers: int | None, *, gpus: int = 0) -> int:
    """Return the number of processors per job, so that the requested number of jobs, by default one per node, fits.

    Examples:
        >>> processors_a_job([8, 8], None), processors_a_job([8, 4], 3), processors_a_job([8, 8], 40)
        (8, 4, 1)
    """
    if gpus:
        return 1
    n_workers = workers or len(nodes)
    rooms = range(max(nodes), 1, -1)
    return next((room for room in rooms if sum(cpus // room for cpus in nodes) >= n_workers), 1)


# ---- on the nodes -------------------------------------------------------------------------------------


def _take_over(folder: str, probes: Sequence[Path], version: str, cache_dir: str) -> None:
    """Change to the folder of the command; raise WorkerError if versions differ or a probe is missing.

    `cache_dir` is the name of the option in messages, which only the command's process knows.
    """
    if version != __version__:
        raise WorkerError(f"expected layerprobe {version}, got {__version__}: install the same on all nodes")
    for file in probes:
        if not file.exists():
            raise WorkerError(
                f"it sees another file system: expected the folder {file.parent} of the machine where the command "
                f"runs: mount that folder at the same path, and select it with {cache_dir}"
            )
    with contextlib.suppress(OSError):  # not needed if all paths are absolute
        os.chdir(folder)


Answered = tuple[str, Any, list[tuple[int, str]]]
"""Kind of a message, its value, and the log since the last one: levels and lines."""


class _Served:
    """A process of the crew."""

    def start(self, setting: Any, begin: Begin, share: Share, here: tuple[str, list[Path], str, str]) -> Answered:
        self._logged: list[tuple[int, str]] = []
        forward_logs(lambda level, line: self._logged.append((level, line)))

        def begun() -> None:
            _take_over(*here)
            self._work = begin(setting, share)

        kind, value = attempt(begun)
        return self._answered(*(("ready", None) if kind == "answer" else (kind, value)))

    def work(self, job: Any) -> Answered:
        return self._answered(*attempt(self._work, job))

    def _answered(self, kind: str, value: Any) -> Answered:
        logged, self._logged = self._logged, []
        return kind, value, logged
