"""Jobs on a Ray cluster: several nodes on this machine, which are killed, full, or see other files."""

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from layerprobe.context import settings
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError, LayerProbeError, StoreError, WorkerError
from layerprobe.extraction.embeddings import extract
from layerprobe.files.serialisation import to_dict
from layerprobe.finetuning.tuning import finetune
from layerprobe.jobs import ray_cluster as ray_pool
from layerprobe.jobs.crew import Workers
from layerprobe.jobs.ray_cluster import RayProcesses, processors_a_job
from layerprobe.versions import __version__
from tests.finetuning import tiny
from tests.jobs import pool_jobs
from tests.jobs.pool_jobs import done
from tests.jobs.test_processes import until
from tests.models import given, tiny_model, tiny_tokenizer
from tests.toy_task import LETTERS, toy_task

pytest.importorskip("ray")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
ROOT = Path(__file__).parents[2]
STORE = 80 * 2**20
# Ray opens sockets and processes that it closes when its process ends
pytestmark = pytest.mark.filterwarnings("ignore")


class Nodes:
    """A head and another node on this machine, of a processor each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes: list[Any] = [self.add()]
        self.address = str(self.cluster.address)

    def add(self) -> Any:
        return self.cluster.add_node(wait=False, object_store_memory=STORE, num_cpus=1)

    def kill(self, number: int) -> None:
        """Kill a node with all its processes, and begin another in its place."""
        self.cluster.remove_node(self.nodes[number], allow_graceful=False)
        self.nodes[number] = self.add()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """A head and a node, and this process connected, which costs seconds each time."""
    import ray

    begun = Nodes()
    ray.init(address=begun.address, log_to_driver=False, logging_level="error")
    yield begun
    ray.shutdown()
    begun.cluster.shutdown()


@pytest.fixture(scope="module")
def larger(cluster: Nodes) -> Nodes:
    """With another node."""
    cluster.nodes.append(cluster.add())
    return cluster


def on(cluster: Nodes, folder: Path, **settings: Any) -> Workers:
    return Workers(executor="ray", address=cluster.address, folders=(folder,), **settings)


@pytest.mark.slow
def test_jobs_are_done_on_all_nodes_and_what_they_say_is_said_once(
    cluster: Nodes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = [str(number) for number in range(8)]
    answers = list(done(pool_jobs.kept_and_said, tmp_path, jobs, on(cluster, tmp_path)))
    assert sorted(job for job, _ in answers) == jobs
    assert len({node for _, node in answers}) == 2
    assert sorted(caplog.messages) == ["100 % of it"]
    assert sorted(path.name for path in tmp_path.iterdir()) == jobs  # the probe is gone
    assert all((tmp_path / job / "result").read_text() == job for job in jobs)


@pytest.mark.slow
def test_a_killed_process_costs_its_job_only(cluster: Nodes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    jobs = ["once", "first", "second", "last"]
    answers: dict[str, Any] = dict(done(pool_jobs.killed, tmp_path, jobs, on(cluster, tmp_path)))
    assert {job: answer for job, (answer, _) in answers.items()} == {job: job for job in jobs}
    (line,) = caplog.messages
    assert line.startswith("a process on the node ")
    assert line.endswith(" ended: restarting its run")


@pytest.mark.slow
def test_a_node_whose_disk_fails_is_left_out_and_the_last_one_is_an_error(
    cluster: Nodes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = ["fine", "bad", "good"]
    with pytest.raises(StoreError, match=r"^no space for bad$"):
        list(done(pool_jobs.on_a_full_disk, "", jobs, on(cluster, tmp_path)))
    (line,) = caplog.messages
    assert line.startswith("the node ")
    assert line.endswith(" is skipped: no space for bad")


def test_processors_are_divided_so_that_all_jobs_find_room() -> None:
    assert processors_a_job([16], None) == 16
    assert processors_a_job([16, 16, 4], None) == 8  # four at a time, the small node none
    assert processors_a_job([16, 16, 4], 7) == 4
    assert processors_a_job([2], 5) == 1
    assert processors_a_job([16, 16], None, gpus=1) == 1


# ---- what cannot be begun ----------------------------------------------------------------------------


def begin(address: str, folder: Path) -> None:
    list(done(pool_jobs.doubling, "", [1], Workers(executor="ray", address=address, folders=(folder,))))


def test_ray_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(LayerProbeError, match=r"^the cluster local needs ray, .*: pip install 'layerprobe\[ray\]'$"):
        begin("local", tmp_path)


@pytest.fixture
def unconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that begins."""
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)


def test_an_address_that_is_none_is_an_error_of_one_line(tmp_path: Path, unconnected: None) -> None:
    with pytest.raises(LayerProbeError, match=r"^the Ray cluster at nonsense cannot be used: ValueError: Invalid .*$"):
        begin("nonsense", tmp_path)


@pytest.mark.slow
def test_an_address_that_does_not_answer_is_an_error_of_one_line(tmp_path: Path, unconnected: None) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(LayerProbeError, match=rf"^expected a Ray cluster at {address}, got no answer within 30 "):
            begin(address, tmp_path)


@pytest.mark.slow
def test_a_cluster_without_a_fitting_node_is_an_error(
    cluster: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_pool, "NODE_SECONDS", 1)
    asked = on(cluster, tmp_path, devices=("cuda",))
    with pytest.raises(LayerProbeError, match=r"^expected a node with a processor and a GPU in the Ray cluster at "):
        list(done(pool_jobs.doubling, "", [1], asked))


def test_a_cluster_that_no_longer_answers_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_pool, "LOST_SECONDS", 0.1)
    crew = RayProcesses(Workers(executor="ray", address="auto", folders=(tmp_path,)), pool_jobs.doubling, "", most=1)
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        crew.doors = (("127.0.0.1", head.getsockname()[1]),)  # bound, and nobody listens
        crew.ray = object()  # of which nothing may be asked any more
        with pytest.raises(LayerProbeError, match=r"^the Ray cluster at auto has ended: 127.0.0.1:\d+ does not "):
            crew.hire(1)
    assert crew.lost
    crew._kill(None)
    crew.close()


# ---- what is killed ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_ten_nodes_that_are_killed_cost_the_jobs_they_had(larger: Nodes, tmp_path: Path) -> None:
    rng, jobs, kills = random.Random(0), [f"{number:03d}" for number in range(220)], 0
    answers: dict[str, Any] = {}
    for job, answer in done(pool_jobs.kept, tmp_path, jobs, on(larger, tmp_path)):
        assert job not in answers
        answers[job] = answer
        if len(answers) % 20 == 0 and kills < 10:
            larger.kill(rng.randrange(2))
            kills += 1
    assert kills == 10
    assert answers == {job: job for job in jobs}
    files = [path.name.partition("-")[0] for job in jobs for path in (tmp_path / job).iterdir()]
    assert files.count("result") == len(jobs)
    assert files.count("made") <= len(jobs)  # none was made twice
    assert files.count("begun") <= len(jobs) + kills  # a node has one at a time
    assert set(files) <= {"lock", "result", "begun", "made"} | {".tmp"}
    assert files.count(".tmp") <= kills


def without_times(value: Any) -> Any:
    times = ("seconds", "peak_memory", "seconds_left")
    if isinstance(value, dict):
        return {key: without_times(each) for key, each in value.items() if key not in times}
    return list(map(without_times, value)) if isinstance(value, list | tuple) else value


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def local(inputs: Path) -> Path:
    tiny.tuned(inputs, inputs / "local", workers=1)
    return inputs / "local"


def assert_as_local(folder: Path, inputs: Path, local: Path) -> None:
    """The same runs with the same outputs, to the byte, and the same result."""

    def outputs(of: Path) -> dict[str, bytes]:
        return {str(path.relative_to(of)): path.read_bytes() for path in of.rglob("outputs.safetensors")}

    assert outputs(folder) == outputs(local)
    results = [tiny.tuned(inputs, each) for each in (folder, local)]
    assert results[0].failures == ()
    assert without_times(to_dict(results[0])) == without_times(to_dict(results[1]))
    assert tiny.half_written(folder) == []


@pytest.mark.slow
def test_a_sweep_is_as_the_local_one_while_nodes_are_killed(
    larger: Nodes, tmp_path: Path, inputs: Path, local: Path
) -> None:
    kills: list[int] = []

    def watch(*step: object) -> None:
        if len(kills) < 2 and len(tiny.results_in(tmp_path)) >= (3, 7)[len(kills)]:
            kills.append(len(kills))
            larger.kill(kills[-1])

    with settings(progress=watch):
        tiny.tuned(inputs, tmp_path, ray=larger.address)
    assert kills == [0, 1]
    assert_as_local(tmp_path, inputs, local)


@pytest.mark.slow
def test_a_sweep_whose_driver_is_killed_goes_on(larger: Nodes, tmp_path: Path, inputs: Path, local: Path) -> None:
    store = tmp_path / "store"
    command = [sys.executable, "-m", "tests.finetuning.tiny", str(inputs), str(store), "2", larger.address]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as driver:
        until(lambda: len(tiny.results_in(store)) >= 3, 180)
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    done = {path: path.stat().st_mtime_ns for path in tiny.results_in(store)}
    assert len(done) < tiny.N_RUNS
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert_as_local(store, inputs, local)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "openvino"])
def test_shards_are_as_the_local_ones(
    larger: Nodes, tmp_path: Path, inputs: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    pytest.importorskip(backend)
    monkeypatch.setattr("layerprobe.store.store.MAX_SHARD_ROWS", 40)
    texts = [f"{first} {second}" for first in LETTERS for second in LETTERS][:230]
    stores = [tmp_path / "local", tmp_path / "ray"]
    options = [Model(device="cpu", max_length=4, backend=backend, cache_dir=store) for store in stores]
    model = inputs / "electra"
    here = extract(given(model, options[0]), texts)
    done: list[tuple[str, float, float]] = []
    monkeypatch.setattr("layerprobe.extraction.embeddings.embed_shards", None)  # only there
    with settings(progress=lambda *step: done.append(step)):
        there = extract(given(model, options[1]), texts, ray=larger.address)
    assert there.stored.manifest.n_shards == 6
    assert there.warnings == here.warnings
    assert done[-1] == ("texts", 230.0, 230.0)
    for name in [shard.name for shard in here.stored.manifest.shards]:
        assert (there.stored.directory / name).read_bytes() == (here.stored.directory / name).read_bytes()
    assert there.stored.manifest.shards == here.stored.manifest.shards
    again = extract(given(model, options[1]), texts, ray="nonsense")  # it is in the store
    assert again.fingerprint == there.fingerprint


def test_a_loaded_model_is_refused(tmp_path: Path) -> None:
    model = (tiny_model("bert"), tiny_tokenizer())
    with pytest.raises(DataError, match=r"^expected the name or the folder of a model for a Ray cluster, got "):
        finetune(given(model, Model(device="cpu", cache_dir=tmp_path)), toy_task(train=32), scan=True, ray="local")


def test_a_process_works_where_the_command_does_or_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path.parent)
    probe = tmp_path / "probe"
    with pytest.raises(WorkerError, match=r"^it sees another file system: expected the folder .* with --cache-dir$"):
        ray_pool._take_over(str(tmp_path), [probe], __version__, "--cache-dir")
    probe.touch()
    with pytest.raises(WorkerError, match=rf"^expected layerprobe 0\.0\.1, got {__version__}: install the same on all"):
        ray_pool._take_over(str(tmp_path), [probe], "0.0.1", "--cache-dir")
    ray_pool._take_over(str(tmp_path), [probe], __version__, "--cache-dir")
    assert Path.cwd() == tmp_path
