"""JSON of scores as version 0.2.0 wrote it -> as it is now. Knows plain data alone."""

from typing import Any

from layerprobe.checks import LEVEL
from layerprobe.errors import DataError

Data = dict[str, Any]


def current_shape(data: Data) -> Data:
    """Return the fields of `Scores`, as JSON has them, for those of now or of an older version.

    0.2.0 had one task (model, task, kind, scores), several tasks (layers with a mean), and retrieval (by_query).
    """
    if "retrieval" in data:
        return _of_models([_of_retrieval(model) for model in data["retrieval"]])
    if "by_query" in data:
        return _of_retrieval(data)
    if "layers" not in data and "scores" in data:
        return _of_one_task(data)
    if any("mean" in layer for layer in data.get("layers", [])):
        return _of_several_tasks(data)
    return data


def _of_one_task(data: Data) -> Data:
    required = ("model", "task", "kind", "scores")
    if missing := [name for name in required if name not in data]:
        raise DataError(f"expected {', '.join(required)}, got no {', '.join(missing)}")
    scores = data["scores"]
    first, compared = scores.get("first_layer", 0), scores.get("compared")
    by_layer = scores["metrics"][scores["primary"]][first:]
    return {
        **{name: data[name] for name in required},
        "task_digest": data.get("task_digest", ""),
        "layers": _layers(data["model"], by_layer, first, compared and compared["intervals"]),
        "level": compared["level"] if compared else LEVEL,
        **({"compared": compared} if compared else {}),
    }


def _of_several_tasks(data: Data) -> Data:
    first = max(task["scores"].get("first_layer", 0) for task in data["tasks"])
    layers = [
        {
            **{name: layer[name] for name in ("layer", "behind", "interval")},
            "score": layer["mean"],
            "parameters": data["model"]["parameters"][layer["layer"]],
        }
        for layer in data["layers"][first:]
    ]
    (task, *more), rest = data["tasks"], {name: data[name] for name in data if name != "tasks"}
    return {**rest, **({"tasks": [task, *more]} if more else task), "layers": layers}


def _of_retrieval(data: Data) -> Data:
    means, first, compared = data["means"], data.get("first_layer", 0), data.get("compared")
    primary = next(iter(means))
    metrics = {name: [mean["value"] for mean in layers] for name, layers in means.items()}
    ends = [(mean["lower"], mean["upper"]) for mean in means[primary][first:]]
    n_items = len(data["query_ids"])
    return {
        **{name: data[name] for name in ("model", "task", "task_digest", "settings", "warnings") if name in data},
        "kind": "retrieval",
        "n_items": n_items,
        "unit": "query",
        "facts": {"documents": data["n_documents"]},
        "scores": {
            "split": "test",
            "method": data["ranking"],
            "primary": primary,
            "metrics": metrics,
            "first_layer": first,
        },
        "items": {
            "ids": data["query_ids"],
            "by_item": data["by_query"],
            "means": means,
            "differences": data["differences"],
        },
        "layers": _layers(data["model"], metrics[primary][first:], first, list(map(list, ends))),
        "level": means[primary][0]["level"],
        **({"compared": compared} if compared else {}),
    }


def _of_models(parts: list[Data]) -> Data:
    """Return one result of those of several models on one task."""
    if len(parts) == 1:
        return parts[0]
    of_task = ("task", "task_digest", "kind", "scores", "n_items", "unit", "facts", "items")
    return {
        "models": [part["model"] for part in parts],
        "tasks": [{name: part[name] for name in of_task} | {"model": i} for i, part in enumerate(parts)],
        "layers": [layer | {"model": i} for i, part in enumerate(parts) for layer in part["layers"]],
        "level": parts[0]["level"],
        "settings": parts[0].get("settings", {}),
        "warnings": list(dict.fromkeys(warning for part in parts for warning in part.get("warnings", []))),
    }


def _layers(model: Data, scores: list[float], first: int, intervals: list[Any] | None) -> list[Data]:
    return [
        {
            "layer": layer,
            "score": score,
            "interval": intervals[layer - first] if intervals else None,
            "parameters": model["parameters"][layer],
        }
        for layer, score in enumerate(scores, first)
    ]
