"""layerprobe export."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from layerprobe.results.table import named_values
from layerprobe_cli.options import check_depth, integers, new_folder, option
from layerprobe_cli.output import Output

HUB = "Hugging Face Hub"


def _in_depth(context: typer.Context, layer: int | None) -> int | None:
    check_depth(context.params.get("model"), layer or 0)
    return layer


def export(
    model: Annotated[
        str,
        typer.Argument(
            help="Hub id, id@revision, a local folder, or a directory of `layerprobe finetune --save-models`.",
            is_eager=True,
        ),
    ],
    out: Annotated[Path, typer.Argument(callback=new_folder, help="The folder to write.")],
    output: Output,
    layer: Annotated[
        int | None,
        typer.Option(
            callback=_in_depth,
            min=0,
            help="Blocks kept; 0 for the embeddings alone.",
            show_default="that of a fine-tuning run",
        ),
    ] = None,
    pooling: Annotated[
        Literal["mean", "cls", "max", "last"] | None,
        typer.Option(help="How token states become one embedding.", show_default="as for extract, or that of the run"),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Tokens a text at most.",
            show_default="the model's sentence-transformers configuration; else its limit, 512 at most; the run's",
        ),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Text put before every text.", show_default="as for extract, or that of the run")
    ] = None,
    random_init: Annotated[
        int | None, typer.Option(metavar="SEED", min=0, help="Fresh random weights instead of the trained ones.")
    ] = None,
    end_token: Annotated[
        bool | None,
        typer.Option(
            "--end-token/--no-end-token",
            help="Whether the end token is appended to every text.",
            show_default="as for extract, or that of the run",
        ),
    ] = None,
    keep_blocks: Annotated[
        str | None,
        typer.Option(
            metavar="BLOCKS",
            help="Take out all other blocks of the model before anything else, such as 1,5,6.",
            show_default="all blocks, or those of the run",
        ),
    ] = None,
    study: Annotated[
        Path | None, typer.Option(help="The study.json of `layerprobe run`: evidence for the model card.")
    ] = None,
    int8: Annotated[
        list[str] | None,
        typer.Option(metavar="[onnx|openvino]", help="Also write it in 8 bits for this backend; again: both."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export at OUT.")] = False,
    push_to_hub: Annotated[
        str | None,
        option(HUB, metavar="USER/NAME", help="Upload the folder to this repository, too; an export at OUT as it is."),
    ] = None,
    public: Annotated[
        bool, option(HUB, "--public", help="Everybody may see the repository; by default it is made private.")
    ] = False,
    revision: Annotated[str | None, option(HUB, help="The branch, made if needed.", show_default="main")] = None,
    commit_message: Annotated[str | None, option(HUB, help="Of the commit.", show_default="what was exported")] = None,
) -> None:
    """Write a truncated model as a folder that others load.

    transformers and sentence-transformers load it. It is loaded back and compared with the layer's own embeddings
    before it gets its name. With --push-to-hub it is uploaded, by the token of HF_TOKEN or of `hf auth login`.

    Example:  [bold]layerprobe export google/electra-base-discriminator electra-9 --layer 9[/bold]
    """
    from layerprobe.study.files import read_study

    if push_to_hub is None and (public or revision is not None or commit_message is not None):
        raise typer.BadParameter("expected --push-to-hub USER/NAME with --public, --revision and --commit-message")
    blocks = None if keep_blocks is None else integers(keep_blocks, "--keep-blocks")
    evidence = None if study is None else read_study(study)

    # only now: an error in the study needs no torch
    from layerprobe.encoders.model import Model
    from layerprobe.export.hub import Push
    from layerprobe.export.run import export_model

    push = push_to_hub and Push(repo=push_to_hub, public=public, revision=revision, message=commit_message)

    result = export_model(
        Model(
            model,
            random_init=random_init,
            end_token=end_token,
            blocks=blocks,
            pooling=pooling,
            max_length=max_length,
            prompt=prompt,
        ),
        out,
        layer=layer,
        study=evidence,
        int8=int8 or (),
        overwrite=overwrite,
        push_to_hub=push or None,
    )
    output.notes((), result.warnings)
    shown = {
        "folder": result.path,
        "model": result.model,
        "revision": result.revision,
        "layer": f"{result.layer} of {result.n_blocks}",
        "parameters": f"{result.parameters:,} instead of {result.whole_parameters:,}",
        "pooling": result.pooling,
        **({"modules": ", ".join(result.modules)} if len(result.modules) > 1 else {}),
        **({} if result.max_length is None else {"max length": result.max_length}),
        **({"prompt": repr(result.prompt)} if result.prompt else {}),
        "loaded back": (f"the same embeddings to {result.difference:.0e}" if result.difference else "equal embeddings")
        + (", compared with the source's own encode" if result.compared_with == "source" else ""),
        **{
            f"8 bits, {each.backend}": f"{each.file}, {each.size / 1e6:.1f} MB; {each.difference_text}"
            for each in result.int8
        },
        **({"uploaded": result.uploaded} if result.uploaded else {}),
    }
    output.result(shown, named_values(shown, "Export"), as_json=result)
