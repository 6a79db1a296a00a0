"""Launch scripts of several kinds as run files: values, lines, what is assumed or refused."""

import ast
import contextlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import ConfigError
from simulator.importing import megatron, megatron_precision
from simulator.importing.cluster_choice import ClusterOptions
from simulator.importing.megatron_import import Imported, import_megatron
from simulator.importing.megatron_names import listed_names
from simulator.importing.translation import has_field
from simulator.loading import load_run

FIXTURES = Path(__file__).parents[3] / "fixtures/launch"
SCRIPTS = sorted(path.name for path in FIXTURES.iterdir())
BASE = (
    "--num-layers 4 --hidden-size 1024 --num-attention-heads 8 --seq-length 512 "
    "--micro-batch-size 1 --global-batch-size 16 --bf16 --vocab-size 1000 "
)


def imported(name: str, **environment: str) -> Imported:
    return import_megatron(FIXTURES / name, ClusterOptions(), environment)


def of_arguments(folder: Path, arguments: str, options: ClusterOptions | None = None) -> Imported:
    path = folder / "arguments.txt"
    path.write_text(BASE + arguments)
    return import_megatron(path, options or ClusterOptions(), {})


def refused(folder: Path, arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        of_arguments(folder, arguments)
    return str(caught.value).replace(f"{folder}/", "")


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_fixture_round_trips(name: str, tmp_path: Path) -> None:
    """What is written loads to the run that was checked."""
    result = imported(name, TP="2")
    path = tmp_path / "run.yaml"
    path.write_text(result.text)
    assert load_run(path) == result.run


def test_arrays_and_arithmetic() -> None:
    run = imported("gpt3_175b_arrays.sh").run
    assert (run.model.num_layers, run.model.hidden_size, run.model.vocab_size) == (96, 12288, 50257)
    assert run.training.global_batch_size == 8 * 16 * 12
    assert run.parallelism.virtual_pipeline_model_parallel_size == 96 // 16
    assert (run.cluster.num_nodes, run.cluster.num_gpus) == (16, 128)
    assert run.training.recompute_granularity == "none"


def test_slurm_strings_and_branches() -> None:
    result = imported("llama3_70b.slurm")
    run = result.run
    assert run.cluster.num_nodes == 8  # from #SBATCH, by way of $SLURM_NNODES
    assert run.parallelism.tensor_model_parallel_size == 4
    assert run.parallelism.sequence_parallel
    assert run.parallelism.tp_comm_overlap
    assert run.parallelism.virtual_pipeline_model_parallel_size == 5
    assert run.training.recompute_granularity == "selective"
    assert not run.training.accumulate_allreduce_grads_in_fp32
    assert run.model.num_query_groups == 8
    assert result.unknown == ()
    other = imported("llama3_70b.slurm", TP="1").run.parallelism
    assert (other.tensor_model_parallel_size, other.sequence_parallel) == (1, False)


def test_sizes_by_case_and_old_spellings() -> None:
    result = imported("by_size.sh", **{"1": "13b"})
    assert (result.run.model.num_layers, result.run.model.ffn_hidden_size) == (40, 13824)
    assert result.run.model.position_embedding_type == "rope"
    assert [(f.argument.spelled, f.words) for f in result.unknown] == [
        ("--tokenizer-modle", "did you mean --tokenizer-model?")
    ]
    assert imported("by_size.sh").run.model.num_layers == 32


def test_lines_of_understood_arguments() -> None:
    lines = {f.argument.spelled: f.argument.place.line for f in imported("by_size.sh").understood}
    assert (lines["--bf16"], lines["--num-layers"], lines["--recompute-method"]) == (24, 35, 29)


def test_mappings_of_arguments() -> None:
    run = imported("model_config.yaml", TP="2").run
    assert run.parallelism.tensor_model_parallel_size == 2
    assert not run.optimizer.use_distributed_optimizer
    assert not run.training.gradient_accumulation_fusion
    nemo = imported("nemo_style.yaml").run
    assert nemo.model.untie_embeddings_and_output_weights
    assert (nemo.model.normalization, nemo.model.gated_linear_unit) == ("RMSNorm", True)
    assert nemo.cluster.num_gpus == 16


def test_mixture_of_experts() -> None:
    result = imported("mixtral_8x7b.sh")
    run = result.run
    assert (run.model.num_experts, run.model.moe_router_topk) == (8, 2)
    assert run.model.expert_ffn_size == 14336
    assert run.parallelism.expert_model_parallel_size == 8
    assert run.parallelism.moe_token_dispatcher_type == "alltoall"
    assert (run.training.moe_grouped_gemm, run.training.moe_permute_fusion) == (True, False)
    assert (result.unknown, result.not_modelled) == ((), ())


def test_deepseek_v3_as_a_mapping() -> None:
    result = imported("deepseek_v3.yaml")
    model, parallelism = result.run.model, result.run.parallelism
    assert model.moe_layer_freq == (0,) * 3 + (1,) * 58
    assert (model.multi_latent_attention, model.q_lora_rank, model.v_head_dim) == (True, 1536, 128)
    assert parallelism.virtual_pipeline_model_parallel_size == 2
    assert result.run.training.recompute_modules == ("mla_up_proj", "mlp", "moe_act")
    assert result.run.cluster.num_gpus == 1024  # 64 x 16: one copy of every expert
    assert "--mtp-num-layers" in [fate.argument.spelled for fate in result.not_modelled]


def test_layers_of_further_tokens_are_left_out(tmp_path: Path) -> None:
    result = of_arguments(
        tmp_path,
        "--mtp-num-layers 1 --pipeline-model-parallel-layout Et|(t|)*2tmL "
        "--pipeline-model-parallel-size 4",
    )
    assert result.run.parallelism.pipeline_model_parallel_layout == "Et|(t|)*2tL"
    assert [fate.argument.spelled for fate in result.not_modelled] == ["--mtp-num-layers"]


def test_switched_off_and_idle_arguments_of_a_mapping() -> None:
    result = imported("sections.yaml")
    model, training = result.run.model, result.run.training
    assert (model.gated_linear_unit, model.ffn_hidden_size) == (True, 2688)  # 64 x 42
    assert (training.bias_activation_fusion, training.attention_backend) == (True, "unfused")
    assert training.precision == "bf16"
    assert (result.unknown, result.not_modelled) == ((), ())
    why = {fate.argument.spelled: fate.words for fate in result.ignored}
    assert why["fp8_wgrad"] == "of fp8, not used"
    assert why["output_layer_init_method"] == "switched off or empty"


def test_unset_variable_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        imported("model_config.yaml")
    assert "model_config.yaml:11: --tensor-model-parallel-size: ${TP}" in str(caught.value)
    assert "--env TP=VALUE" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "path", "value"),
    [
        ("--swiglu", "model.ffn_hidden_size", int(4 * 1024 * 2 / 3 / 64) * 64),
        ("--squared-relu", "model.activation_function", "squared_relu"),
        ("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 "
         "--microbatch-group-size-per-virtual-pipeline-stage 4",
         "parallelism.microbatch_group_size_per_vp_stage", 4),
        ("--pipeline-model-parallel-size 2 --enable-zero-bubble",
         "parallelism.pipeline_schedule", "zb_h1"),
        ("--pipeline-model-parallel-size 2 --enable-zero-bubble --zero-bubble-v-schedule",
         "parallelism.pipeline_schedule", "zb_v"),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Ettt|tL'",
         "parallelism.pipeline_model_parallel_layout", "Ettt|tL"),
        ("--cpu-offloading-num-layers 2", "training.cpu_offloading", True),
        ("--recompute-granularity selective --recompute-modules mlp layernorm",
         "training.recompute_modules", ("mlp", "layernorm")),
        ("--num-query-groups 2", "model.num_query_groups", 8),
        ("--group-query-attention", "model.num_query_groups", 1),
        ("--use-rotary-position-embeddings", "model.position_embedding_type", "rope"),
        ("--position-embedding-type alibi", "model.position_embedding_type", "none"),
        ("--checkpoint-activations", "training.recompute_granularity", "full"),
        ("--transformer-impl local", "training.attention_backend", "unfused"),
        ("--transformer-impl local --use-flash-attn", "training.attention_backend", "flash"),
        ("--enable-cuda-graph", "training.cuda_graph", "per_layer"),
        ("--no-bias-swiglu-fusion", "training.bias_activation_fusion", False),
        (
            "--no-scatter-gather-tensors-in-pipeline",
            "parallelism.scatter_gather_tensors_in_pipeline",
            False,
        ),
        ("--pipeline-model-parallel-size=2", "parallelism.pipeline_model_parallel_size", 2),
        ("--sequence-parallel", "parallelism.sequence_parallel", False),
        ("--tensor-model-parallel-size 2 --sequence-parallel",
         "parallelism.sequence_parallel", True),
        ("--decoder-first-pipeline-num-layers 1 --pipeline-model-parallel-size 2",
         "parallelism.num_layers_in_first_pipeline_stage", 1),
        ("--num-layers 6", "model.num_layers", 6),
        ("--untie-embeddings-and-output-weights",
         "model.untie_embeddings_and_output_weights", True),
        ("--clip-grad 0", "optimizer.clip_grad", 0.0),
        ("--context-parallel-size 2 --cp-comm-type a2a", "parallelism.cp_comm_type", "a2a"),
    ],
)  # fmt: skip
def test_arguments(tmp_path: Path, arguments: str, path: str, value: object) -> None:
    section, name = path.split(".")
    run = of_arguments(tmp_path, arguments).run
    assert getattr(getattr(run, section), name) == value


def test_half_precision_reduces_in_half(tmp_path: Path) -> None:
    """Megatron-LM's main gradients are fp32 by themselves for bf16 only."""
    path = tmp_path / "a.sh"
    path.write_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py {BASE.replace('bf16', 'fp16')}")
    training = import_megatron(path, ClusterOptions(), {}).run.training
    assert (training.precision, training.accumulate_allreduce_grads_in_fp32) == ("fp16", False)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--fp8-format hybrid", ("hybrid", "delayed", 1, "most_recent", False)),
        ("--fp8-format hybrid --fp8-amax-history-len 1024 --fp8-amax-compute-algo max",
         ("hybrid", "delayed", 1024, "max", False)),
        ("--fp8-format e4m3 --fp8-recipe blockwise --fp8-param-gather",
         ("e4m3", "blockwise", 1024, "max", True)),
        ("--fp4-format e2m1", ("e2m1", "nvfp4", 1024, "max", False)),
    ],
)  # fmt: skip
def test_low_precision(
    tmp_path: Path, arguments: str, expected: tuple[str, str, int, str, bool]
) -> None:
    """The run file's own defaults of delayed scales are not Megatron-LM's."""
    options = ClusterOptions(gpu="b200")
    result = of_arguments(tmp_path, f"{arguments} --use-distributed-optimizer", options)
    low = result.run.training.low_precision
    assert low is not None
    found = (low.format, low.recipe, low.amax_history_len, low.amax_compute_algo, low.param_gather)
    assert found == expected
    assert result.run.training.accumulate_allreduce_grads_in_fp32
    assert (result.unknown, result.not_modelled) == ((), ())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--hybrid-attention-ratio 0.1", "a hybrid of Mamba and attention is not modelled"),
        ("--num-layers-per-virtual-pipeline-stage 3 --pipeline-model-parallel-size 2",
         "4 layers are not 2 stages of whole chunks of 3"),
        ("--tensor-model-parallel-size 3", "3 does not divide num_attention_heads (8)"),
        ("--tensor-model-parallel-size", "takes one value, found nothing"),
        ("--tensor-model-parallel-size 2 4", "takes one value, found 2 4"),
        ("--tensor-model-parallel-size two", "'two' is not a whole number"),
        ("--tensor-model-parallel-size $TP",
         "$TP is not known from the script; give --env TP=VALUE"),
        ("--fp8-format e5m2", "'e5m2' is not allowed; choose hybrid, e4m3"),
        ("--recompute-granularity some", "'some' is not allowed; choose none, selective, full"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, arguments: str, message: str) -> None:
    told = refused(tmp_path, arguments)
    assert message in told
    assert "arguments.txt:1" in told


def test_options_of_the_cluster(tmp_path: Path) -> None:
    options = ClusterOptions(
        gpu="a100-sxm-80g", num_nodes=2, gpus_per_node=4, fabric="single-switch"
    )
    cluster = of_arguments(tmp_path, "", options).run.cluster
    assert (cluster.node.name, cluster.node.gpus_per_node) == ("dgx-a100", 4)
    assert (cluster.num_nodes, cluster.fabric.name) == (2, "single-switch")
    assert (
        of_arguments(tmp_path, "", ClusterOptions(gpu="B200")).run.cluster.node.name == "dgx-b200"
    )
    with pytest.raises(ConfigError, match="no node of the catalog has it; did you mean 'h100-"):
        of_arguments(tmp_path, "", ClusterOptions(gpu="h100-sxm"))


def test_more_nodes_where_the_script_has_too_few(tmp_path: Path) -> None:
    """Examples say one node; a replica of 2 x 16 GPUs needs four."""
    path = tmp_path / "run.sh"
    arguments = f"{BASE} --num-layers 16 --tensor-model-parallel-size 2"
    path.write_text(
        f"torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py {arguments} "
        "--pipeline-model-parallel-size 16"
    )
    result = import_megatron(path, ClusterOptions(), {})
    assert result.run.cluster.num_nodes == 4
    assert any("too few for one replica of 32 GPUs" in words for words in result.assumed)


def test_overrides_win_and_are_marked(tmp_path: Path) -> None:
    path = tmp_path / "arguments.txt"
    path.write_text(BASE)
    settings = ["training.global_batch_size=32", "cluster.num_nodes=2"]
    result = import_megatron(path, ClusterOptions(), {}, settings)
    assert (result.run.training.global_batch_size, result.run.cluster.num_nodes) == (32, 2)
    line = next(line for line in result.text.splitlines() if "global_batch_size" in line)
    assert line.endswith("# --set")


def test_a_bare_list_is_no_shell(tmp_path: Path) -> None:
    """Pasted from a log: parentheses and bars without quotes, lists in brackets."""
    path = tmp_path / "arguments.txt"
    path.write_text(
        f"# a run of ours\n{BASE}\n--pipeline-model-parallel-layout Et|(t|)*2tL \\\n"
        "--pipeline-model-parallel-size 4 # stages\n--recompute-granularity selective\n"
        "--recompute-modules [layernorm mlp]\n--hidden-dropout ${DROP:-0.2} --clip-grad $CLIP\n"
    )
    run = import_megatron(path, ClusterOptions(), {"CLIP": "0.5"}).run
    assert run.parallelism.pipeline_model_parallel_layout == "Et|(t|)*2tL"
    assert run.training.recompute_modules == ("layernorm", "mlp")
    assert (run.model.hidden_dropout, run.optimizer.clip_grad) == (0.2, 0.5)


def test_schedule_of_batch_sizes(tmp_path: Path) -> None:
    path = tmp_path / "arguments.txt"
    text = BASE.replace("--global-batch-size 16", "--step-batch-size-schedule 0:8 20B:32")
    path.write_text(text)
    result = import_megatron(path, ClusterOptions(), {})
    assert result.run.training.global_batch_size == 32
    assert "the batch size is the last of its schedule" in result.assumed


def test_a_lost_backslash_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        f"torchrun --nproc_per_node 8 pretrain_gpt.py {BASE}\n  --swiglu \\\n  --lr 1\n"
    )
    result = import_megatron(path, ClusterOptions(), {})
    assert result.run.model.gated_linear_unit
    assert [(note.line, note.message) for note in result.notes] == [
        (2, "cut off from the command above; is a backslash missing?")
    ]


def test_arguments_in_a_variable_only(tmp_path: Path) -> None:
    path = tmp_path / "config.sh"
    path.write_text(f'export PARAMS=" {BASE} "\n. submit.sh\n')
    result = import_megatron(path, ClusterOptions(), {})
    assert result.run.model.num_layers == 4
    assert "taken from the variable PARAMS" in result.notes[-1].message


def test_variables_that_nothing_sets_are_nothing_between_options(tmp_path: Path) -> None:
    result = of_arguments(tmp_path, "--swiglu --use-distributed-optimizer $A --num-layers 8 ${B}")
    assert result.run.optimizer.use_distributed_optimizer
    assert result.run.model.num_layers == 8
    assert "nothing sets $A: taken as nothing" in result.assumed
    assert "taken as nothing, since nothing sets it: ${B}" in [n.message for n in result.notes]


def test_batch_options_on_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.slurm"
    path.write_text(f"#!/bin/bash\n#SBATCH -N 4 --ntasks-per-node=4 # c\nsrun python p.py {BASE}\n")
    cluster = import_megatron(path, ClusterOptions(), {}).run.cluster
    assert (cluster.num_nodes, cluster.node.gpus_per_node) == (4, 4)


@pytest.mark.parametrize(
    ("arguments", "sharding"),
    [
        ("--use-torch-fsdp2", "zero3"),
        ("--zero-stage 2", "zero2"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", "zero2"),
        ("--use-custom-fsdp", "none"),
        ("--use-distributed-optimizer", "zero1"),
    ],
)
def test_sharded_data_parallelism(tmp_path: Path, arguments: str, sharding: str) -> None:
    run = of_arguments(tmp_path, arguments).run
    assert run.optimizer.data_parallel_sharding == sharding


@pytest.mark.parametrize(
    ("written", "nearest"),
    [
        ("--swigloo", "--swiglu"),
        ("--use-distributed-optimiser", "--use-distributed-optimizer"),
        ("--tensor-model-paralel-size 2", "--tensor-model-parallel-size"),
    ],
)
def test_unknown_arguments_get_the_nearest_name(tmp_path: Path, written: str, nearest: str) -> None:
    unknown = of_arguments(tmp_path, written).unknown
    assert [fate.words for fate in unknown] == [f"did you mean {nearest}?"]


def test_short_forms_as_argparse_has_them(tmp_path: Path) -> None:
    result = of_arguments(tmp_path, "--tensor-model 2 --untie")
    assert result.run.parallelism.tensor_model_parallel_size == 2
    assert result.run.model.untie_embeddings_and_output_weights
    assert "--untie is short for --untie-embeddings-and-output-weights" in result.assumed


def test_names_that_rules_read_are_listed() -> None:
    """So that the nearest name is found among all of them."""
    sources = [Path(m.__file__).read_text(encoding="utf-8") for m in (megatron, megatron_precision)]
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    taken = {
        argument.value
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("take", "peek")
        for argument in call.args
        if isinstance(argument, ast.Constant)
    }
    missing = taken - {*megatron.SPELLED_OTHERWISE, *listed_names()}
    assert len(taken) > 30
    assert [name for name in missing if not has_field(name)] == []


def test_of_several_commands_one_is_taken_and_told(tmp_path: Path) -> None:
    path = tmp_path / "x.sh"
    path.write_text(f"torchrun p.py {BASE} --lr 1\ntorchrun q.py {BASE}\n")
    notes = import_megatron(path, ClusterOptions(), {}).notes
    assert [(n.line, n.message) for n in notes] == [
        (1, "taken; commands that train too, left out: line 2")
    ]


FLAGS = st.sampled_from(
    ["--swiglu", "--bf16", "--num-layers", "--tensor-model-parallel-size", "--vocab-size", "--lr",
     "--recompute-granularity", "--num-query-groups", "--group-query-attention", "--kv-channels",
     "--num-layers-per-virtual-pipeline-stage", "--pipeline-model-parallel-layout",
     "--cp-comm-type",
     "--attention-backend", "--hidden-dropout", "--ddp-bucket-size", "--global-batch-size"]
)  # fmt: skip
VALUES = st.sampled_from(["", "0", "1", "2", "-3", "1e9", "x", "$A", "full", "a b", "'", "[1]"])


@given(st.lists(st.tuples(FLAGS, VALUES), max_size=6))
def test_any_arguments_give_a_run_or_an_error_in_words(pairs: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(ConfigError):
        result = of_arguments(Path(folder), " ".join(f"{flag} {value}" for flag, value in pairs))
        path = Path(folder) / "run.yaml"
        path.write_text(result.text)
        assert load_run(path) == result.run


def test_given_twice_the_last_counts(tmp_path: Path) -> None:
    result = of_arguments(tmp_path, "--num-layers 8")
    assert result.run.model.num_layers == 8
    assert "--num-layers twice, on lines 1 and 1: the last counts" in result.assumed


@pytest.mark.parametrize("text", ["", "echo hello", "\x00\x01", "{}", "--foo 1"])
def test_no_training_found(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.sh"
    path.write_text(text)
    with pytest.raises(ConfigError, match="no Megatron-LM arguments found"):
        import_megatron(path, ClusterOptions(), {})


def test_other_models_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.sh"
    path.write_text(f"torchrun pretrain_t5.py {BASE}")
    with pytest.raises(ConfigError, match=r"pretrain_t5\.py trains another model than a GPT"):
        import_megatron(path, ClusterOptions(), {})
