"""`clustersim import megatron` and `clustersim import hf`."""

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli import Json, Quiet, Set, app, check_outputs, summary_console, write_json
from simulator.errors import ConfigError

import_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Bring a Megatron-LM launch script or a Hugging Face config.json.",
)
app.add_typer(import_app, name="import")

Output = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="FILE", help="Where to write it; stdout if left out."),
]


@import_app.command()
def megatron(
    script: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT", help="Launch script, list of arguments, or .yaml or .json of them."
        ),
    ],
    output: Output = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="GPU of the catalog: its usual node is taken.")
    ] = None,
    node: Annotated[
        str | None, typer.Option("--node", help="Node of the catalog, or a path; dgx-h100 if none.")
    ] = None,
    fabric: Annotated[
        str | None, typer.Option("--fabric", help="Fabric of the catalog, or a path.")
    ] = None,
    num_nodes: Annotated[
        int | None, typer.Option("--num-nodes", min=1, help="Nodes, whatever the script says.")
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option("--gpus-per-node", min=1, help="GPUs used of each node.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            metavar="NAME=VALUE",
            help="A variable that is set when the script starts; 1=..., 2=... are its arguments.",
        ),
    ] = None,
    set_: Set = None,
    json_: Json = None,
    quiet: Quiet = False,
) -> None:
    """Make a run file of a launch script, without running it."""
    from simulator.importing.cluster_choice import ClusterOptions
    from simulator.importing.import_report import import_json, print_import
    from simulator.importing.megatron_import import import_megatron

    check_outputs(script, {"--output": output, "--json": json_})
    options = ClusterOptions(gpu, _named(node), _named(fabric), num_nodes, gpus_per_node)
    imported = import_megatron(Path(script), options, _environment(env), set_ or ())
    if json_ is not None:
        write_json(json_, import_json(imported))
    if not quiet and json_ != "-":
        print_import(imported, summary_console(to_stderr=output is None))
    _write(output, imported.text, stdout_taken=json_ == "-")


@import_app.command()
def hf(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG.json", help="A model's config.json of Hugging Face.")
    ],
    output: Output = None,
    name: Annotated[
        str | None, typer.Option("--name", help="The model's name; the file's own if left out.")
    ] = None,
    json_: Json = None,
    quiet: Quiet = False,
) -> None:
    """Make a model file of a config.json of Hugging Face."""
    from simulator.importing.huggingface_import import import_huggingface
    from simulator.importing.import_report import import_json, print_import

    check_outputs(config, {"--output": output, "--json": json_})
    imported = import_huggingface(Path(config), name)
    if json_ is not None:
        write_json(json_, import_json(imported))
    if not quiet and json_ != "-":
        print_import(imported, summary_console(to_stderr=output is None))
    _write(output, imported.text, stdout_taken=json_ == "-")


def _named(preset: str | None) -> str | None:
    """A preset's name as it is; a path made absolute, since the run file may go elsewhere."""
    if preset is None or not preset.endswith((".yaml", ".yml", ".json")):
        return preset
    return str(Path(preset).resolve())


def _environment(pairs: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name.strip().replace("_", "a").isalnum():
            raise ConfigError(f"--env {pair}: must read NAME=VALUE, such as NNODES=16")
        found[name.strip()] = value
    return found


def _write(output: str | None, text: str, *, stdout_taken: bool) -> None:
    if output is None:
        if not stdout_taken:
            typer.echo(text, nl=False)
        return
    from simulator.files import write_text

    write_text(Path(output), text)
