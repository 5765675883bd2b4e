"""The shards of an entry of the store, each embedded and written on a node of a Ray cluster; the manifest here."""

import contextlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from layerprobe.encoders.backends.choice import graph_of
from layerprobe.encoders.loading import Checkpoint
from layerprobe.encoders.options import Settled, computed_on, load
from layerprobe.encoders.spec import ModelSpec
from layerprobe.encoders.workers import check_computes, on_ray, same_model
from layerprobe.errors import DataError, LayerProbeError, ModelError, StoreError, WorkerError
from layerprobe.extraction.embed import embed_layers
from layerprobe.files.images import Readable, prompted, readable_as
from layerprobe.jobs.processes import Lost
from layerprobe.jobs.ray_cluster import RayCluster, ray_pooled
from layerprobe.progress import Progress, silent
from layerprobe.store.manifest import Manifest, StoredFile
from layerprobe.store.shards import ShardWriter, write_shard


def embed_on_ray(
    cluster: RayCluster,
    writer: ShardWriter,
    checkpoint: Checkpoint,
    texts: Sequence[str],
    options: Settled,
    progress: Progress,
) -> None:
    """Make the pending shards; a killed node costs those it was at.

    Raises:
        DataError: If the model was given loaded, or a value of an embedding cannot be kept.
        ModelError: If the model cannot read a text.
        StoreError: If no node can write.
        WorkerError: If the process of a shard is lost again and again.
    """
    if checkpoint.loaded is not None:
        raise DataError(f"expected the name or the folder of a model for a Ray cluster, got {checkpoint.label} loaded")
    directory, manifest = writer.place
    setting = _Setting(
        model=checkpoint.spec,
        identity=checkpoint.identity,
        options=on_ray(options),
        computed_on=computed_on(options),
        directory=directory.absolute(),
        manifest=manifest,
        items=readable_as(texts),
    )
    pending = writer.pending
    whole, done = sum(stop - start for _, start, stop in pending), 0
    ended: Generator[tuple[tuple[int, int, int], StoredFile | LayerProbeError | Lost], None, None] = ray_pooled(
        cluster,
        _Worker,
        lambda threads: replace(setting, threads=threads),
        pending,
        sent=lambda shard: (shard[0], list(texts[shard[1] : shard[2]])),
    )
    with contextlib.closing(ended) as answers:
        for (_, start, stop), answer in answers:
            if isinstance(answer, Lost):
                why = answer.trace or "if memory ran out, use fewer workers or a smaller --batch-tokens"
                raise WorkerError(f"the process of texts {start} to {stop} was ended again and again: {why}")
            if isinstance(answer, LayerProbeError):
                raise answer
            writer.note(answer)
            done += stop - start
            progress("texts", float(done), float(whole))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """What a process needs that embeds shards."""

    model: ModelSpec
    identity: dict[str, Any]
    options: Settled
    computed_on: str
    directory: Path
    manifest: Manifest
    items: Readable
    threads: int = 1


class _Worker:
    """Embeds and writes one shard after another."""

    def __init__(self, setting: _Setting) -> None:
        check_computes(setting.options, setting.computed_on)
        torch.set_num_threads(min(setting.threads, torch.get_num_threads()))
        self.setting = setting
        checkpoint = same_model(setting.model, setting.identity, setting.options, items=setting.items)
        self.encoder = load(checkpoint, setting.options)
        try:
            self.graph = graph_of(self.encoder, checkpoint, setting.options)
        except ModelError as error:  # where the command runs, it is there
            raise WorkerError(str(error)) from error

    def __call__(self, shard: tuple[int, list[str]]) -> StoredFile | LayerProbeError:
        """Return what is to be noted of a shard, or why there is none."""
        (index, texts), options = shard, self.setting.options
        try:
            tokens = self.encoder.tokenize(prompted(options.prompt, texts), max_length=options.max_length)
            layers = embed_layers(
                self.encoder,
                tokens,
                pooling=options.pooling,
                batch_tokens=options.batch_tokens,
                progress=silent,
                graph=self.graph,
            )
            return write_shard(self.setting.directory, self.setting.manifest, index, layers, n_cut=tokens.n_truncated)
        except StoreError:
            raise
        except LayerProbeError as error:
            return error
