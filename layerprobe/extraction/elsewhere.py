"""Embeds the shards of a store entry as jobs: workers write the shards, this process the manifest."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from layerprobe.encoders.backends.choice import graph_of
from layerprobe.encoders.loading import Checkpoint
from layerprobe.encoders.model import Settled
from layerprobe.encoders.workers import SharedModel
from layerprobe.errors import LayerProbeError, LostWorkerError, ModelError, WorkerError
from layerprobe.extraction.embed import embed_layers
from layerprobe.files.images import prompted, readable_as
from layerprobe.jobs.crew import crew_of
from layerprobe.jobs.execute import execute
from layerprobe.jobs.plan import Plan, Share, Workers
from layerprobe.store.manifest import Manifest, StoredFile
from layerprobe.store.shards import ShardWriter, write_shard


def embed_elsewhere(
    workers: Workers, writer: ShardWriter, checkpoint: Checkpoint, texts: Sequence[str], options: Settled
) -> None:
    """Embed the pending shards; a killed node costs only its current ones."""
    directory, manifest = writer.place
    model = SharedModel(replace(checkpoint, options=options), items=readable_as(texts), workers=workers)
    setting = _Setting(model=model, options=options, directory=directory.absolute(), manifest=manifest)
    plan: Plan[tuple[int, int, int], StoredFile] = Plan(
        jobs={shard: float(shard[2] - shard[1]) for shard in writer.pending},
        sent=lambda shard: (shard[0], list(texts[shard[1] : shard[2]])),
        unit="texts",
    )
    with crew_of(_Worker, setting, workers, most=len(plan.jobs)) as crew:
        for (_, start, stop), answer in execute(plan, crew):
            if isinstance(answer, LostWorkerError):
                raise WorkerError(f"texts {start} to {stop}: {answer}")
            if isinstance(answer, LayerProbeError):
                raise answer
            writer.note(answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """What a worker needs to embed shards."""

    model: SharedModel
    options: Settled
    directory: Path
    manifest: Manifest


class _Worker:
    """Embeds and writes one shard after another."""

    def __init__(self, setting: _Setting, share: Share) -> None:
        setting.model.take_over(share)
        self.setting, self.encoder = setting, setting.model.encoder
        try:
            self.graph = graph_of(self.encoder, setting.model.checkpoint, setting.model.options)
        except ModelError as error:  # where the command runs, it is there
            raise WorkerError(str(error)) from error

    def __call__(self, shard: tuple[int, list[str]]) -> StoredFile:
        """Return what is to be noted of a shard."""
        (index, texts), options = shard, self.setting.options
        tokens = self.encoder.tokenize(prompted(options.prompt, texts), max_length=options.max_length)
        layers = embed_layers(
            self.encoder, tokens, pooling=options.pooling, batch_tokens=options.batch_tokens, graph=self.graph
        )
        return write_shard(self.setting.directory, self.setting.manifest, index, layers, n_cut=tokens.n_truncated)
