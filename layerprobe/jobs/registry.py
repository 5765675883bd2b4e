"""The ways to do jobs, by name: each a `layerprobe.jobs.crew.Crew`."""

EXECUTORS = {
    "here": "layerprobe.jobs.crew:Here",
    "processes": "layerprobe.jobs.processes:Processes",
    "ray": "layerprobe.jobs.ray_cluster:RayProcesses",
}
