"""The ways to do jobs, by name: each a `layerprobe.jobs.crew.Crew`."""

from layerprobe.registry import Registry

EXECUTORS: Registry[type] = Registry(
    "layerprobe.executors",
    type,
    what="way to do jobs",
    own={
        "here": "layerprobe.jobs.crew:Here",
        "processes": "layerprobe.jobs.processes:Processes",
        "ray": "layerprobe.jobs.ray_cluster:RayProcesses",
    },
)
