"""Jobs in the processes of a Ray cluster, as `layerprobe.jobs.processes` has them in those of one machine.

Knows nodes and what they have, not what a job is. Ray is imported when the first process is asked for. A process, or a
whole node, that is killed costs the jobs it was at, which are begun again elsewhere; a node whose store fails, or that
sees other files, is left out with one line.
"""

import collections
import contextlib
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from layerprobe.errors import LayerProbeError, WorkerError
from layerprobe.files.atomic import TEMPORARY, make_directory, write_whole
from layerprobe.jobs.processes import Jobs, Lost, attempt, forward_logs, said_once
from layerprobe.versions import __version__

logger = logging.getLogger(__name__)

S = TypeVar("S")
J = TypeVar("J")
A = TypeVar("A")

TRIES = 5
"""How often a job may lose its process: more often than on one machine, because whole nodes go, too."""
ANSWER_SECONDS = 30
"""Within which a cluster must answer."""
NODE_SECONDS = 60
"""How long to wait for a node when there is none."""
REFRESH_SECONDS = 2.0
"""From one look at the nodes to the next."""
PROBE = f"{TEMPORARY}ray-"
"""What the names of files begin with by which a node shows that it sees a folder."""
OBJECT_STORE = 200 * 2**20
"""Bytes that a cluster on this machine may keep in shared memory; jobs keep theirs on disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayCluster:
    """Where jobs are done, and what each of them takes."""

    address: str
    """As `ray.init` takes it: host:port, auto for one that runs on this machine, or local for one of its own."""
    folders: tuple[Path, ...]
    """The folders of the jobs, which all nodes must see."""
    workers: int | None = None
    """Jobs at a time at most; by default one a GPU, else one a node."""
    gpus: int = 0
    """Of each job."""


def ray_pooled(
    cluster: RayCluster,
    start: Callable[[S], Callable[[Any], A | None]],
    setting_of: Callable[[int], S],
    jobs: Sequence[J],
    *,
    waiting: Callable[[J], None] = lambda job: None,
    sent: Callable[[J], Any] = lambda job: job,
) -> Generator[tuple[J, A | Lost], None, None]:
    """Do jobs in processes on the nodes of a cluster; give each job with its answer as it ends.

    As `layerprobe.jobs.processes.pooled`, but that all processes have one setting, `setting_of` the processors that
    each may use; that StoreError and WorkerError are the failure of a node, whose jobs go to others; and that a job may
    lose its process five times. Nodes that join, or come back, take part. Each process checks that it sees the folder
    as this one does. The whole cluster may be in other hands, too: what is not free is waited for. A process gets what
    `sent` makes of a job when it is begun, by default the job itself.

    Raises:
        LayerProbeError: If Ray is not installed, does not answer, does not fit, or has no node for the jobs.
        StoreError, WorkerError: The last one, if every node failed.
        RuntimeError: If `start` raises anything else; with its traceback.
    """
    if not jobs:
        return
    with _connected(cluster.address) as ray, _probes(cluster.folders) as probes:
        pool = _Pool(ray, cluster, start, setting_of, Jobs(jobs, waiting, tries=TRIES), probes, sent)
        try:
            yield from pool.answers()
        finally:
            pool.end()


# ---- the cluster --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Give the module of Ray, connected; a connection that is there already is used, and left."""
    if address == "local":  # for one that somebody else began, the choice is theirs
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray._private.worker as private
    except ImportError as error:
        raise LayerProbeError(
            f"expected Ray for the cluster {address}, got {error}: pip install 'layerprobe[ray]'"
        ) from error
    if ray.is_initialized():
        yield ray
        return
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        settings |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
    else:
        _check_answers(address)
    # Ray 2.60 prints that a node is lost on stdout, where results go; the pool says so itself
    printing, private.print_to_stdstream = private.print_to_stdstream, lambda *arguments, **options: None
    at_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        with _one_line(address):
            ray.init(address=address, **settings)
        if at_sigterm is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, at_sigterm)  # with that of Ray, what is ended so prints a trace of C++
        yield ray
    finally:
        ray.shutdown()
        private.print_to_stdstream = printing


def _check_answers(address: str) -> None:
    """Connect in a process of its own: where nothing answers, `ray.init` waits for minutes, or ends its process."""
    code = "import logging, ray, sys\ntry: ray.init(sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)\n"
    code += "except BaseException as error: sys.exit(f'{type(error).__name__}: {error}')"
    try:
        tried = subprocess.run(
            [sys.executable, "-c", code, address], capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise LayerProbeError(
            f"expected a Ray cluster at {address}, got no answer within {ANSWER_SECONDS} seconds: check the address "
            "and the network, or begin one with `ray start --head`"
        ) from None
    if tried.returncode:
        raise LayerProbeError(f"the Ray cluster at {address} cannot be used: {_line(tried.stderr)}")


@contextlib.contextmanager
def _one_line(address: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise LayerProbeError(f"the Ray cluster at {address} cannot be used: {_line(str(error))}") from error


def _line(text: str) -> str:
    """Return the last paragraph of a message of Ray in one line, of a process that ended how it did."""
    last = text.strip().rpartition("\n\n")[-1].rpartition("exit detail: ")[-1]
    return " ".join(last.split()) or "no reason was given"


@dataclass(frozen=True, slots=True)
class _Probe:
    """A file in the folder of the jobs that every node must find."""

    path: Path
    content: str

    def check(self) -> None:
        """Raise WorkerError where it is not there, which is where another file system is."""
        try:
            same = self.path.read_text() == self.content
        except OSError:
            same = False
        if not same:
            raise WorkerError(
                f"it sees another file system: expected the folder {self.path.parent} of the machine where the command "
                "runs: mount the same one at the same place, and choose it with --cache-dir"
            )


@contextlib.contextmanager
def _probes(folders: Sequence[Path]) -> Iterator[tuple[_Probe, ...]]:
    probes = []
    try:
        for folder in dict.fromkeys(folder.absolute() for folder in folders):
            make_directory(folder)
            _remove_old(folder)
            probe = _Probe(folder / f"{PROBE}{secrets.token_hex(6)}", secrets.token_hex(16))
            write_whole(probe.path, probe.content.encode())
            probes.append(probe)
        yield tuple(probes)
    finally:
        for probe in probes:
            with contextlib.suppress(OSError):
                probe.path.unlink()


def _remove_old(folder: Path) -> None:
    """Remove what killed commands left."""
    for left in folder.glob(f"{PROBE}*"):
        with contextlib.suppress(OSError):
            if left.stat().st_mtime < time.time() - 30 * 86400:
                left.unlink()


# ---- the pool -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Node:
    """What can be used of one."""

    id: str
    name: str
    cpus: int
    gpus: int

    def slots(self, cpus: int, gpus: int) -> int:
        """Return how many processes it has room for."""
        return min(self.cpus // cpus, self.gpus // gpus if gpus else self.cpus)


@dataclass(eq=False)
class _Worker:
    """A process, seen from here."""

    node: _Node
    actor: Any
    reference: Any
    """Of what it is at; None where it is idle."""
    job: list[Any] = field(default_factory=list)
    """At most one."""
    ready: bool = False


class _Pool:
    """The processes and the jobs."""

    def __init__(
        self,
        ray: Any,
        cluster: RayCluster,
        start: Callable[[Any], Any],
        setting_of: Callable[[int], Any],
        jobs: Jobs[Any],
        probes: tuple[_Probe, ...],
        sent: Callable[[Any], Any],
    ) -> None:
        self.ray, self.cluster, self.start, self.jobs, self.probes = ray, cluster, start, jobs, probes
        self.sent = sent
        self.workers: list[_Worker] = []
        self.left_out: dict[str, Exception] = {}
        """Why, by the id of a node."""
        self.unready: collections.Counter[str] = collections.Counter()
        """Processes that ended before they were ready, by the id of their node."""
        self.say = said_once()
        self.log = ray.remote(_Log).options(num_cpus=0, scheduling_strategy=self._on(self._here())).remote()
        self.heard = self.log.heard.remote()
        self.nodes = self._wait_for_nodes()
        self.cpus = processors_a_job([node.cpus for node in self.nodes], cluster.workers, gpus=cluster.gpus)
        self.setting = ray.put(setting_of(self.cpus))
        self.looked = time.monotonic()
        self.ready_since = time.monotonic()

    def answers(self) -> Iterator[tuple[Any, Any]]:
        """Give each job with its answer as it ends."""
        while self.jobs.left:
            self._begin_workers()
            for worker in [worker for worker in self.workers if worker.reference is None]:
                worker.job = self.jobs.take()
                for job in worker.job:
                    worker.reference = worker.actor.work.remote(self.sent(job))
            for worker in self._ended():
                yield from self._outcome(worker, *self._message(worker))
        self._listen(self.log.so_far.remote())

    def end(self) -> None:
        """End all processes."""
        for actor in [*(worker.actor for worker in self.workers), self.log]:
            self._kill(actor)

    def _kill(self, actor: Any) -> None:
        with contextlib.suppress(Exception):  # it is gone, or Ray is
            self.ray.kill(actor)

    # ---- nodes and processes -----------------------------------------------------------------------------

    def _here(self) -> str:
        return str(self.ray.get_runtime_context().get_node_id())

    def _on(self, node: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node, soft=False)

    def _alive(self) -> list[_Node]:
        """Return the nodes that have what a job takes."""
        found = []
        for each in self.ray.nodes():
            has, name = each["Resources"], f"{each['NodeManagerHostname']} ({each['NodeID'][:8]})"
            node = _Node(each["NodeID"], name, int(has.get("CPU", 0)), int(has.get("GPU", 0)))
            if each["Alive"] and node.cpus and node.gpus >= self.cluster.gpus:
                found.append(node)
        return found

    def _wait_for_nodes(self) -> list[_Node]:
        end = time.monotonic() + NODE_SECONDS
        while not (nodes := [node for node in self._alive() if node.id not in self.left_out]):
            if time.monotonic() > end:
                takes = "a processor and a GPU" if self.cluster.gpus else "a processor"
                raise LayerProbeError(
                    f"expected a node with {takes} in the Ray cluster at {self.cluster.address}, got none within "
                    f"{NODE_SECONDS} seconds: look at `ray status`"
                )
            self.say(logging.WARNING, "no node of the Ray cluster can take a job now: waiting for one")
            time.sleep(0.5)
        return nodes

    def _begin_workers(self) -> None:
        """Begin processes where there is room, the emptiest node first."""
        if time.monotonic() > self.looked + REFRESH_SECONDS or not self.workers:
            self.nodes, self.looked = [node for node in self._alive() if node.id not in self.left_out], time.monotonic()
            if not self.nodes and not self.workers:
                self.nodes = self._wait_for_nodes()
        used = collections.Counter(worker.node.id for worker in self.workers)
        free = {node: node.slots(self.cpus, self.cluster.gpus) - used[node.id] for node in self.nodes}
        n_jobs = self.jobs.left if self.jobs else len(self.workers)  # where none waits, no further one is of use
        for _ in range(min(n_jobs, self.cluster.workers or n_jobs) - len(self.workers)):
            node = max(free, key=lambda each: free[each], default=None)
            if node is None or free[node] < 1:
                return
            free[node] -= 1
            self.workers.append(self._begun(node))

    def _begun(self, node: _Node) -> _Worker:
        served = self.ray.remote(_Served).options(
            num_cpus=self.cpus, num_gpus=self.cluster.gpus, scheduling_strategy=self._on(node.id)
        )
        actor = served.remote()
        here = _Here(str(Path.cwd()), self.probes)
        return _Worker(node, actor, actor.start.remote(self.start, self.setting, here, self.log))

    # ---- what they say -----------------------------------------------------------------------------------

    def _ended(self) -> list[_Worker]:
        """Wait until processes have ended what they were at, or there is something else to do; return these."""
        at = {worker.reference: worker for worker in self.workers if worker.reference is not None}
        seconds = REFRESH_SECONDS
        if len(at) < len(self.workers):
            seconds = min(seconds, self.jobs.seconds_to_next() or 0.01)
        listened = [] if self.heard is None else [self.heard]
        done, _ = self.ray.wait([*at, *listened], timeout=seconds) if at or listened else ([], [])
        if done and done[0] == self.heard:
            self.heard = self.log.heard.remote() if self._listen(self.heard) else None
        done, _ = self.ray.wait(list(at), num_returns=len(at), timeout=0) if at else ([], [])
        if any(worker.ready for worker in self.workers):
            self.ready_since = time.monotonic()
        elif time.monotonic() > self.ready_since + NODE_SECONDS:
            self.say(logging.WARNING, "the Ray cluster has not begun a process so far: its processors may be taken")
        return [at[reference] for reference in done]

    def _listen(self, reference: Any) -> bool:
        """Log what was said; return whether more can come."""
        try:
            for level, line in self.ray.get(reference):
                self.say(level, line)
        except self.ray.exceptions.RayError:  # the process that gathers it is gone
            return False
        return True

    def _message(self, worker: _Worker) -> tuple[str, Any]:
        try:
            kind, value = self.ray.get(worker.reference)
        except self.ray.exceptions.RayError as error:
            return "ended", error
        return str(kind), value

    def _outcome(self, worker: _Worker, kind: str, value: Any) -> Iterator[tuple[Any, Any]]:
        """Take what a process says; give its job where that is done, or lost."""
        jobs, worker.job, worker.reference = worker.job, [], None
        if kind == "answer" and not worker.ready:
            worker.ready = True
            self.unready.pop(worker.node.id, None)
            return
        if kind != "answer":
            self._end(worker)
        if kind == "raised" and not worker.ready:
            raise RuntimeError(f"a worker process raised:\n{value}")
        if kind == "unfit":
            self._leave_out(worker.node, value)
        elif kind == "ended" and not worker.ready:
            self._count_unready(worker.node, value)
        for job in jobs:
            if kind == "answer" and value is None:
                self.jobs.put_off(job)
            elif kind == "unfit":
                self.jobs.give_back(job)
            elif kind == "ended" and not self.jobs.is_given_up(job):
                logger.warning("a process on the node %s ended: its run is begun again", worker.node.name)
            else:
                self.jobs.left -= 1
                yield job, value if kind == "answer" else Lost(None, value if kind == "raised" else None)

    def _end(self, worker: _Worker) -> None:
        self.workers.remove(worker)
        self._kill(worker.actor)
        self.looked = 0.0  # its node may be gone

    def _leave_out(self, node: _Node, error: Exception) -> None:
        self.left_out[node.id] = error
        self.nodes = [each for each in self.nodes if each != node]
        if not any(each.id not in self.left_out for each in self._alive()):
            raise error.with_traceback(None)
        self.say(logging.WARNING, f"the node {node.name} is left out: {error}")

    def _count_unready(self, node: _Node, error: Exception) -> None:
        """Leave a node out where processes end before they are ready; one that is gone is none."""
        self.unready[node.id] += 1
        if self.unready[node.id] == TRIES:
            self._leave_out(node, WorkerError(f"its processes end before they are ready: {_line(str(error))}"))


def processors_a_job(nodes: Sequence[int], workers: int | None, *, gpus: int = 0) -> int:
    """Return how many processors each job gets, so that as many as are asked for, by default one a node, find room.

    Examples:
        >>> processors_a_job([8, 8], None), processors_a_job([8, 4], 3), processors_a_job([8, 8], 40)
        (8, 4, 1)
    """
    if gpus:
        return 1
    wanted = workers or len(nodes)
    rooms = range(max(nodes), 1, -1)
    return next((room for room in rooms if sum(cpus // room for cpus in nodes) >= wanted), 1)


# ---- on the nodes -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Here:
    """What a process takes over from where the command runs."""

    folder: str
    """In which names of files are looked up."""
    probes: tuple[_Probe, ...]
    version: str = __version__

    def take_over(self) -> None:
        """Raise WorkerError where that cannot be done."""
        if self.version != __version__:
            raise WorkerError(f"expected layerprobe {self.version}, got {__version__}: install the same on all nodes")
        for probe in self.probes:
            probe.check()
        with contextlib.suppress(OSError):  # where names are whole it is not needed
            os.chdir(self.folder)


class _Log:
    """What the processes say."""

    def __init__(self) -> None:
        import asyncio

        self.lines: list[tuple[int, str]] = []
        self.some = asyncio.Event()

    async def say(self, level: int, line: str) -> None:
        self.lines.append((level, line))
        self.some.set()

    async def heard(self) -> list[tuple[int, str]]:
        """Wait until something is said, and return it."""
        await self.some.wait()
        return await self.so_far()

    async def so_far(self) -> list[tuple[int, str]]:
        """Return what was said since."""
        self.some.clear()
        lines, self.lines = self.lines, []
        return lines


class _Served:
    """A process of the pool."""

    def start(self, start: Callable[[Any], Any], setting: Any, here: _Here, log: Any) -> tuple[str, Any]:
        import ray

        def send(level: int, line: str) -> None:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(log.say.remote(level, line))  # before the answer to the job

        def begin(setting: Any) -> None:
            here.take_over()
            self._work = start(setting)

        forward_logs(send)
        return attempt(begin, setting)

    def work(self, job: Any) -> tuple[str, Any]:
        return attempt(self._work, job)
