"""Megatron-LM's arguments as settings of a run file.

An argument whose name is a field of the run file sets it. Here are the others: those spelled
otherwise, those that set several keys, and the defaults in which Megatron-LM differs from the run
file. After `megatron/training/arguments.py` of Megatron-LM, core 0.16, and its older spellings.
"""

import re
from collections.abc import Callable

from simulator.importing import megatron_names as names
from simulator.importing.arguments import Argument
from simulator.importing.megatron_precision import READ, take_precision
from simulator.importing.translation import Fate, Translation, choices, fields, has_field, path_of

_ALIASES = {
    "model_parallel_size": "tensor_model_parallel_size",
    "batch_size": "micro_batch_size",
    "encoder_num_layers": "num_layers",
    "decoder_num_layers": "num_layers",
    "encoder_seq_length": "seq_length",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    "microbatch_group_size_per_virtual_pipeline_stage": "microbatch_group_size_per_vp_stage",
    "num_moe_experts": "num_experts",
    "bucket_size": "ddp_bucket_size",
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method",
    "activations_checkpoint_num_layers": "recompute_num_layers",
    "overlap_p2p_comm": "overlap_p2p_communication",
    "num_gqa_groups": "num_query_groups",
}
"""Older, deprecated and NeMo's spellings."""

_OTHER_PROGRAMS = re.compile(r"pretrain_(t5|bert|ict|realm|retro|vlm|mamba|hybrid|vision\w*)\b")


def translate(translation: Translation, program: str) -> None:
    """Turn all arguments into settings; nothing is left in `translation.arguments`."""
    _check_model(translation, program)
    for old, new in _ALIASES.items():
        if old in translation.arguments and has_field(new):
            argument = translation.arguments.pop(old)
            if not argument.denied:
                translation.arguments.setdefault(new, argument)
    _complete_names(translation)
    for rule in RULES:
        rule(translation)
    _drop_idle(translation)
    translation.take_fields()
    for finish in FINISHES:
        finish(translation)
    translation.sort_rest(names.IGNORED, names.NOT_MODELLED, _all_names())


_IDLE = (
    (("moe_",), ("num_experts",), "of experts, which this model does not have"),
    (("fp8_", "no_fp8_", "fp4_"), ("fp8", "fp8_format", "fp4", "fp4_format"), "of fp8, not used"),
)
"""Beginnings of names, the arguments without which they do nothing, and so why they are ignored."""


def _drop_idle(t: Translation) -> None:
    used = {fate.argument.name for fate in t.understood}
    used |= {name for name in t.arguments if t.peek(name) is not None}
    for starts, switches, why in _IDLE:
        if not used.isdisjoint(switches):
            continue
        for name in [name for name in t.arguments if name.startswith(starts)]:
            t.ignored.append(Fate(t.arguments.pop(name), why))


def _all_names() -> tuple[str, ...]:
    """Every argument that is known, whatever becomes of it, with its underscores."""
    denials = [f"no_{name}" for name in fields()]
    return tuple(
        dict.fromkeys([*fields(), *SPELLED_OTHERWISE, *_ALIASES, *names.listed_names(), *denials])
    )


def _complete_names(t: Translation) -> None:
    """Take the beginning of one name for it, as argparse does."""
    known = _all_names()
    for name in [name for name in t.arguments if name not in known]:
        if names.reason(names.IGNORED, name) or names.reason(names.NOT_MODELLED, name):
            continue
        longer = [other for other in known if other.startswith(name)]
        if len(longer) == 1 and longer[0] not in t.arguments:
            argument = t.arguments.pop(name)
            t.arguments[longer[0]] = argument
            t.assumed.append(f"{argument.spelled} is short for --{longer[0].replace('_', '-')}")


def _check_model(t: Translation, program: str) -> None:
    """Refuse what would make another model of it than the one simulated."""
    for name, kind in names.OTHER_MODELS.items():
        argument = t.arguments.get(name)
        if argument is not None and not argument.denied and not has_field(name):
            t.problem(argument, f"{kind} is not modelled yet; a dense GPT would be another model")
            t.arguments.pop(name)
    if found := _OTHER_PROGRAMS.search(program):
        anywhere = next(iter(t.arguments.values()), None)
        if anywhere is not None:
            t.problem(anywhere, f"{found[0]}.py trains another model than a GPT; not modelled")


def _activation(t: Translation) -> None:
    swiglu, squared = t.take("swiglu"), t.take("squared_relu")
    named = t.take("activation", "activation_func")
    kind = named.text.lower().removeprefix("fast-") if named else ""
    gated = swiglu or (named if kind in ("swiglu", "geglu", "reglu") else None)
    if gated is not None:
        t.arguments.pop("gated_linear_unit", None)
        t.put(("model", "gated_linear_unit"), True, gated)
        t.put(("model", "activation_function"), "gelu" if kind == "geglu" else "silu", gated)
        _default_ffn(t)
    elif squared is not None or kind in ("squared-relu", "squared_relu"):
        t.put(("model", "activation_function"), "squared_relu", squared or named)  # type: ignore[arg-type]
    elif named is not None:
        t.put(("model", "activation_function"), kind or "gelu", named)


def _default_ffn(t: Translation) -> None:
    """Without --ffn-hidden-size a gated MLP is two thirds of 4 h wide, in steps of 64."""
    width = t.peek("hidden_size")
    if t.peek("ffn_hidden_size") is None and width is not None and width.isdecimal():
        value = int(4 * int(width) * 2 / 3 / 64) * 64
        t.default(("model", "ffn_hidden_size"), str(value), "Megatron-LM's default with --swiglu")
        t.arguments.pop("ffn_hidden_size", None)


def _biases(t: Translation) -> None:
    off, named = t.take("disable_bias_linear"), t.arguments.pop("bias", None)
    if off is not None:
        t.put(("model", "add_bias_linear"), False, off)
    elif named is not None:
        t.put(("model", "add_bias_linear"), not named.denied, named)


def _embeddings(t: Translation) -> None:
    shared = t.arguments.pop("share_embeddings_and_output_weights", None)
    if shared is not None and "untie_embeddings_and_output_weights" not in t.arguments:
        t.put(("model", "untie_embeddings_and_output_weights"), shared.denied, shared)
    rotary = t.take("use_rotary_position_embeddings")
    none = t.take("no_position_embedding")
    kind = t.take("position_embedding_type")
    path = ("model", "position_embedding_type")
    if rotary is not None:
        t.put(path, "rope", rotary)
    elif kind is not None and (text := t.value(kind)) is not None:
        plain = text in choices("position_embedding_type")
        if not plain:
            t.assumed.append(f"{path[0]}.{path[1]} = none: {text} is not modelled")
        t.put(path, text if plain else "none", kind)
    elif none is not None:
        t.put(path, "none", none)
    if none is not None and (rotary or kind):
        t.also(none, "no learned positions")


def _groups(t: Translation) -> None:
    """--num-query-groups counts only with --group-query-attention, and is 1 by itself."""
    switch, groups = t.take("group_query_attention"), t.take("num_query_groups")
    if switch is not None:
        t.also(switch, "grouped queries")
    mapping = groups is not None and not groups.spelled.startswith("-")
    if groups is not None and (switch is not None or mapping):
        if (text := t.value(groups)) is not None:
            t.put(("model", "num_query_groups"), text, groups)
    elif groups is not None:
        t.also(groups, "without --group-query-attention of no effect")
    elif switch is not None:
        why = "Megatron-LM's default with --group-query-attention"
        t.default(("model", "num_query_groups"), "1", why)


def _norm(t: Translation) -> None:
    """NeMo writes `layernorm1p` and `rmsnorm`."""
    if (argument := t.take("normalization")) and (text := t.value(argument)):
        rms = text.lower().startswith("rms")
        t.put(("model", "normalization"), "RMSNorm" if rms else "LayerNorm", argument)


def _recomputation(t: Translation) -> None:
    old = t.take("recompute_activations")
    oldest = t.take("checkpoint_activations", "activations_checkpoint")
    path = ("training", "recompute_granularity")
    if old is not None:
        t.put(path, "selective", old)
    elif oldest is not None:
        t.put(path, "full", oldest)
    elif t.peek("recompute_method") and t.peek("recompute_granularity") is None:
        t.put(path, "full", t.arguments["recompute_method"])


def _attention(t: Translation) -> None:
    """Which attention kernels run; --use-flash-attn decides for Megatron's own layers only."""
    backend, flash = t.take("attention_backend"), t.take("use_flash_attn")
    local = t.peek("transformer_impl") == "local"
    path = ("training", "attention_backend")
    if backend is not None and (text := t.value(backend)) is not None:
        text = text.rpartition(".")[2]
        if text in ("local", *choices("attention_backend")):
            t.put(path, "unfused" if text == "local" else text, backend)
        else:
            t.also(backend, "a fused kernel, the run file's default")
    elif flash is not None and local:
        t.put(path, "flash", flash)
    elif flash is not None:
        t.also(flash, "a fused kernel, the run file's default")
    elif local:
        t.default(path, "unfused", "--transformer-impl local without --use-flash-attn")


def _chunks(t: Translation) -> None:
    """--num-layers-per-virtual-pipeline-stage as chunks per stage."""
    argument = t.take("num_layers_per_virtual_pipeline_stage")
    if argument is None or (per_chunk := t.number(argument)) is None:
        return
    layers, stages = t.peek("num_layers") or "", t.peek("pipeline_model_parallel_size") or "1"
    if not layers.isdecimal() or not stages.isdecimal() or not per_chunk * int(stages):
        return
    ends = [
        name
        for name in (
            "account_for_embedding_in_pipeline_split",
            "account_for_loss_in_pipeline_split",
        )
        if name in t.arguments and not t.arguments[name].denied
    ]
    chunks, rest = divmod(int(layers) + len(ends), per_chunk * int(stages))
    if rest or not chunks:
        message = f"{layers} layers are not {stages} stages of whole chunks of {per_chunk}"
        t.problem(argument, message)
    elif chunks > 1:
        t.put(("parallelism", "virtual_pipeline_model_parallel_size"), str(chunks), argument)
    else:
        t.also(argument, "one chunk per stage")


def _scatter_gather(t: Translation) -> None:
    argument = t.take("no_scatter_gather_tensors_in_pipeline")
    if argument is not None:
        t.put(("parallelism", "scatter_gather_tensors_in_pipeline"), False, argument)


def _fusions(t: Translation) -> None:
    off = [t.take(name) for name in ("no_bias_swiglu_fusion", "no_bias_gelu_fusion")]
    for argument in off:
        if argument is not None:
            t.put(("training", "bias_activation_fusion"), False, argument)
    for name in ("bias_swiglu_fusion", "bias_gelu_fusion"):
        if (named := t.arguments.pop(name, None)) is not None:
            t.arguments.pop("bias_activation_fusion", None)
            t.put(("training", "bias_activation_fusion"), not named.denied, named)


def _graphs(t: Translation) -> None:
    old, kind = t.take("enable_cuda_graph", "external_cuda_graph"), t.take("cuda_graph_impl")
    scope = t.take("cuda_graph_scope")
    argument = old or (kind if kind and kind.text != "none" else None)
    if argument is None or not has_field("cuda_graph"):
        return
    whole = scope is not None and scope.text == "full_iteration"
    if scope is not None and scope.text not in ("full", "full_iteration"):
        t.assumed.append(f"whole layers as CUDA graphs: the scope {scope.text} is not modelled")
    t.put(path_of("cuda_graph"), "full_iteration" if whole else "per_layer", argument)


def _schedule(t: Translation) -> None:
    """Arguments of the fork of the zero-bubble paper's authors (sail-sg)."""
    shaped, split = t.take("zero_bubble_v_schedule"), t.take("enable_zero_bubble")
    path = ("parallelism", "pipeline_schedule")
    if shaped is not None:
        t.put(path, "zb_v", shaped)
        if split is not None:
            t.also(split, "a zero-bubble schedule")
    elif split is not None:
        t.put(path, "zb_h1", split)


def _rank_order(t: Translation) -> None:
    if (argument := t.take("use_tp_pp_dp_mapping")) is not None:
        t.put(("parallelism", "rank_order"), "tp-cp-ep-pp-dp", argument)


def _host_layers(t: Translation) -> None:
    """The number of layers switches their offload on."""
    layers = t.peek("cpu_offloading_num_layers")
    if layers not in (None, "0") and t.peek("cpu_offloading") is None:
        argument = t.arguments["cpu_offloading_num_layers"]
        t.put(("training", "cpu_offloading"), True, argument)


def _sharding(t: Translation) -> None:
    """FSDP of PyTorch and of Megatron, where the run file can say it."""
    if not has_field("data_parallel_sharding"):
        return
    path = path_of("data_parallel_sharding")
    torch, stage = t.take("use_torch_fsdp2"), t.take("zero_stage")
    if stage is not None and (number := t.value(stage)) in ("0", "1", "2", "3"):
        t.put(path, f"zero{number}" if number != "0" else "none", stage)  # DeepSpeed
    megatron = t.take("use_megatron_fsdp", "use_custom_fsdp")
    strategy = t.take("data_parallel_sharding_strategy")
    stages = {"no_shard": "none", "optim": "zero1", "optim_grads": "zero2",
              "optim_grads_params": "zero3"}  # fmt: skip
    if torch is not None:
        t.put(path, "zero3", torch)
    elif megatron is not None and strategy is not None:
        t.put(path, stages.get(strategy.text, strategy.text), strategy)
        t.also(megatron, "sharded data parallelism")
    elif megatron is not None:
        t.also(megatron, "nothing sharded, its default strategy")


def _optimizer(t: Translation) -> None:
    named = t.arguments.get("optimizer")
    if named is not None and named.text.lower() in ("adam", "adamw", "fused_adam"):
        t.arguments.pop("optimizer")
        t.also(named, "Adam")


def _window(t: Translation) -> None:
    """--window-size LEFT,RIGHT: keys before and after a query; a decoder sees none after."""
    argument = t.arguments.get("window_size")
    if argument is None or not has_field("window_size"):
        return
    t.arguments.pop("window_size")
    found = re.match(r"\D*(\d+)", argument.text)
    if found is not None and not argument.denied:
        t.put(path_of("window_size"), found[1], argument)


def _experts(t: Translation) -> None:
    """Spellings of the dispatcher, and losses that cost the same as one that is modelled."""
    for name, otherwise in (
        ("moe_token_dispatcher_type", "alltoall"),
        ("moe_router_load_balancing_type", "aux_loss"),
    ):
        text = t.peek(name)
        if text is None or not has_field(name) or text in choices(name):
            continue
        if text.startswith(otherwise) or text.endswith(otherwise):  # alltoall_seq, global_aux_loss
            t.put(path_of(name), otherwise, t.arguments.pop(name))
    if t.peek("moe_token_dispatcher_type") == "flex" and has_field("moe_token_dispatcher_type"):
        for name in ("moe_enable_deepep", "moe_flex_dispatcher_backend"):
            if (backend := t.take(name)) is not None:
                t.also(backend, "in the dispatcher flex")


def _further_tokens(t: Translation) -> None:
    """Layers of multi-token prediction, which the run file may have but nothing prices yet."""
    layout = t.arguments.get("pipeline_model_parallel_layout")
    if layout is not None and layout.is_known and "m" in layout.text:
        text = re.sub(r"m(\*\d+)?", "", t.arguments.pop(layout.name).text)
        t.put(path_of(layout.name), text, layout)
    if (argument := t.take("mtp_num_layers")) is not None and argument.text != "0":
        t.not_modelled.append(Fate(argument, "layers that predict further tokens: left out"))


def _rampup(t: Translation) -> None:
    if (argument := t.take("rampup_batch_size")) is not None:
        t.assumed.append("the batch size is the final one: its ramp-up is not simulated")
        t.also(argument, "the step after the ramp-up is simulated")
    schedule = t.take("step_batch_size_schedule")
    if schedule is not None and t.peek("global_batch_size") is None:  # START:SIZE, in order
        size = schedule.text.split()[-1].rpartition(":")[2] if schedule.text else ""
        t.put(("training", "global_batch_size"), size, schedule)
        t.assumed.append("the batch size is the last of its schedule")


def _vocabulary(t: Translation) -> None:
    """--vocab-size, else that of a known tokenizer, else an assumption."""
    path = ("model", "vocab_size")
    padded, extra = t.take("padded_vocab_size"), t.take("extra_vocab_size")
    if t.peek("vocab_size") is not None:
        return
    t.arguments.pop("vocab_size", None)
    fixed = padded or t.arguments.get("pad_vocab_size_to")
    if fixed is not None and (entries := t.number(fixed)) is not None:
        t.put(path, str(entries), fixed)
        return
    for name in ("tokenizer_type", "tokenizer_model", "tokenizer_name_or_path", "vocab_file"):
        argument = t.arguments.get(name)
        told = "" if argument is None else argument.text.lower()
        known = next((size for part, size in names.VOCABULARIES.items() if part in told), None)
        if argument is not None and known is not None:
            more = int(extra.text) if extra and extra.text.isdecimal() else 0
            t.put(path, str(known + more), argument)
            return
    plain = t.arguments.get("tokenizer_type")
    big = plain is not None and "huggingface" in plain.text.lower()
    size = 128256 if big else 50257 if plain is None else 32000
    kind = "no tokenizer" if plain is None else plain.text
    t.assume(
        path, str(size), f"the size of the vocabulary is not told ({kind}); set it if it is not"
    )


def _sequence_parallel(t: Translation) -> None:
    """Megatron-LM switches it off without tensor parallelism."""
    on = t.get("parallelism", "sequence_parallel") == "True"
    if on and t.whole("parallelism", "tensor_model_parallel_size") == 1:
        del t.settings["parallelism", "sequence_parallel"]
        t.understood[:] = [f for f in t.understood if "sequence_parallel" not in f.words]
        t.assumed.append(
            "no sequence parallelism: Megatron-LM switches it off with one tensor rank"
        )


def _batch(t: Translation) -> None:
    if ("training", "micro_batch_size") not in t.settings:
        t.assume(("training", "micro_batch_size"), "1", "--micro-batch-size is not given")


SPELLED_OTHERWISE = (
    *READ, "swiglu", "squared_relu", "activation",
    "activation_func", "disable_bias_linear", "bias", "share_embeddings_and_output_weights",
    "use_rotary_position_embeddings", "no_position_embedding", "group_query_attention",
    "recompute_activations", "checkpoint_activations", "activations_checkpoint",
    "use_flash_attn", "transformer_impl", "num_layers_per_virtual_pipeline_stage",
    "no_bias_swiglu_fusion", "no_bias_gelu_fusion", "bias_swiglu_fusion", "bias_gelu_fusion",
    "no_scatter_gather_tensors_in_pipeline",
    "enable_cuda_graph", "external_cuda_graph", "cuda_graph_impl", "cuda_graph_scope",
    "zero_bubble_v_schedule", "enable_zero_bubble", "use_torch_fsdp2", "zero_stage",
    "use_megatron_fsdp", "use_custom_fsdp", "data_parallel_sharding_strategy", "optimizer",
    "rampup_batch_size", "step_batch_size_schedule", "padded_vocab_size",
    "extra_vocab_size", "pad_vocab_size_to", "mtp_num_layers",
    "moe_token_dispatcher_type", "moe_enable_deepep", "moe_flex_dispatcher_backend",
    "use_tp_pp_dp_mapping",
    "tokenizer_type", "tokenizer_model", "tokenizer_name_or_path", "vocab_file",
)  # fmt: skip
"""Arguments that the rules read and that are no key of the run file."""

RULES: tuple[Callable[[Translation], None], ...] = (
    take_precision, _activation, _biases, _embeddings, _groups, _norm, _recomputation, _attention,
    _chunks, _schedule, _scatter_gather, _fusions, _graphs, _rank_order, _host_layers, _sharding,
    _optimizer, _window, _experts, _further_tokens, _rampup, _vocabulary,
)  # fmt: skip
"""What comes before the arguments that name a key of the run file."""

FINISHES: tuple[Callable[[Translation], None], ...] = (_sequence_parallel, _batch)


def last_of_each(arguments: list[Argument]) -> tuple[dict[str, Argument], list[str]]:
    """Arguments by name, the last where one is given twice, as argparse has it; and what to say."""
    found: dict[str, Argument] = {}
    said: list[str] = []
    for argument in arguments:
        first = found.get(argument.name)
        if first is not None and first.text != argument.text:
            said.append(
                f"{argument.spelled} twice, on lines {first.place.line} and "
                f"{argument.place.line}: the last counts"
            )
        found[argument.name] = argument
    return found, said
