"""A Ray cluster of some nodes on this machine, for tests."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
STORE = 80 * 2**20


class Nodes:
    """A head and other nodes, of a processor each."""

    def __init__(self, n_nodes: int) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes: list[Any] = [self.add() for _ in range(n_nodes)]
        self.address = str(self.cluster.address)

    def add(self, **settings: Any) -> Any:
        return self.cluster.add_node(wait=False, object_store_memory=STORE, **{"num_cpus": 1, **settings})

    def kill(self, number: int) -> None:
        """Kill a node with all its processes, and begin another in its place."""
        self.cluster.remove_node(self.nodes[number], allow_graceful=False)
        self.nodes[number] = self.add()


@contextlib.contextmanager
def nodes(n_nodes: int) -> Iterator[Nodes]:
    begun = Nodes(n_nodes)
    try:
        yield begun
    finally:
        import ray

        ray.shutdown()
        begun.cluster.shutdown()
