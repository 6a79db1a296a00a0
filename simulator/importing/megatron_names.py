"""Megatron-LM's arguments that the run file does not have: which do not matter, which do.

Names after Megatron-LM's `megatron/training/arguments.py` and the configuration classes of
Megatron Core 0.16, older spellings included; `*` stands for any ending.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase

IGNORED: Mapping[str, str] = {
    "learning rate and regularisation": """
        lr lr_* min_lr decoupled_* weight_decay* start_weight_decay end_weight_decay adam_beta*
        adam_eps sgd_momentum override_opt_param_scheduler use_checkpoint_opt_param_scheduler
        override_lr_scheduler use_checkpoint_lr_scheduler warmup label_smoothing
        apply_wd_to_qk_layernorm""",
    "initial values, random numbers and loss scaling": """
        init_method* embedding_init_method* seed data_parallel_random_init loss_scale*
        initial_loss_scale min_loss_scale hysteresis te_rng_tracker inference_rng_tracker
        use_cpu_initialization perform_initialization init_model_with_meta_device""",
    "paths, data and tokenizer files": """
        data_path *_data_path data_cache_path data_args_path per_split_data_args_path split
        mock_data data_impl vocab_file merge_file tokenizer_model tokenizer_type
        tokenizer_name_or_path tokenizer_metadata tokenizer_hf_* tokenizer_special_tokens
        tokenizer_sentencepiece_* tiktoken_* num_workers *_num_workers dataloader_type
        dataloader_* reset_position_ids reset_attention_mask eod_mask_loss
        no_create_attention_mask_in_dataloader create_attention_mask_in_dataloader
        no_mmap_bin_files mmap_bin_files s3_cache_path object_storage_cache_path data_sharding
        train_weighted_* valid_weighted_* dataset train_mode mid_level_dataset_surplus
        num_dataset_builder_threads vocab_extra_ids full_validation multiple_validation_sets
        fim_* append_eod json_keys mask_prob short_seq_prob sample_rate train_data* valid_data*
        test_data* dataset_* trust_remote_code""",
    "checkpoints": """
        save save_* load load_* no_load_* no_save_* finetune ckpt_* async_save async_strategy
        use_dist_ckpt auto_detect_ckpt_format dist_ckpt_* pretrained_checkpoint non_persistent_*
        use_checkpoint_args exit_on_missing_checkpoint use_mp_args_from_checkpoint_args
        no_use_tokenizer_model* use_persistent_ckpt_worker replication* no_initialization
        verify_integrity retain_* strict_fsdp_dtensor_load""",
    "logging and profiling": """
        log_* no_log_* logging_* tensorboard_* wandb_* one_logger_* enable_one_logger
        no_one_logger timing_* profile profile_* use_pytorch_profiler nvtx_ranges
        record_memory_history memory_snapshot_path barrier_with_L1_time no_barrier_*
        config_logger_dir moe_per_layer_logging report_theoretical_memory tee app_tag_run_*
        enable_ft_package local_rank *straggler* tflops_*""",
    "length and control of the run": """
        train_iters train_samples train_tokens exit_* eval_* skip_train manual_gc*
        iterations_to_skip rerun_mode error_injection_* check_for_* no_check_for_* adlr_*
        check_weight_hash_* kill_switch_path distributed_timeout_* inprocess_* test_mode
        run_workload_inspector_server no_persist_* deterministic_mode
        result_rejected_tracker_filename empty_unused_memory_level decrease_batch_size_if_needed""",
    "how it is built, without a change of the step's work": """
        use_mcore_models use_legacy_models spec model_type yaml_cfg distributed_backend
        lazy_mpu_init enable_experimental norm_epsilon layernorm_epsilon apply_layernorm_1p
        layernorm_zero_centered_gamma rotary_base rotary_percent rotary_interleaved
        rotary_scaling_factor rope_type rope_scaling* use_rope_scaling rotary_seq_len_*
        original_max_position_embeddings beta_fast beta_slow mscale mscale_all_dim
        attention_softmax_in_fp32 apply_query_key_layer_scaling no_query_key_layer_scaling
        softmax_scale calculate_per_token_loss transformer_impl use_flash_attn use_flash_attn_v*
        clone_scatter_output_in_embedding nccl_communicator_config_path
        high_priority_stream_groups disable_mamba_mem_eff_path
        disable_tp_comm_* tp_comm_bootstrap_backend tp_comm_overlap_cfg
        enable_gloo_process_groups disable_gloo_process_groups no_async_* attention_backend
        pad_vocab_size_to DDP_impl moe_aux_loss_coeff moe_z_loss_coeff
        moe_router_score_function moe_router_dtype moe_router_pre_softmax
        moe_router_topk_scaling_factor moe_router_enable_expert_bias moe_router_bias_update_rate
        moe_input_jitter_eps mtp_loss_scaling_factor use_dist_ckpt_* deepspeed deepspeed_config
        deepspeed_activation_checkpointing onnx_safe bert_* bias_activation_fp32 quick_geglu_*
        fp8_margin fp8_interval num_experts_per_tok_* external_args inference_*
        max_tokens_to_oom legacy_tokenizer use_legacy_static_engine
        abort_on_unmet_fused_kernel_constraints no_pipeline_parallel accelerator_backend""",
}
"""Why -> names that are left out on purpose."""

NOT_MODELLED: Mapping[str, str] = {
    "it changes the step a little": """
        no_masked_softmax_fusion masked_softmax_fusion no_bias_dropout_fusion
        bias_dropout_fusion no_rope_fusion apply_rope_fusion no_persist_layer_norm
        persist_layer_norm fused_single_qkv_rope memory_efficient_layer_norm add_qkv_bias
        qkv_bias embed_layernorm qk_layernorm qk_l2_norm qk_clip* attention_output_gate
        apply_residual_connection_post_layernorm fp32_residual_connection fp16_lm_cross_entropy
        cross_entropy_fusion_impl overlap_param_gather_with_optimizer_step align_param_gather
        align_grad_reduce delay_grad_reduce delay_param_gather no_align_*
        gradient_reduce_div_fusion average_in_collective ddp_average_in_collective
        ddp_num_buckets ddp_pad_buckets_for_high_nccl_busbw
        reduce_scatter_with_fp32_accumulation nccl_ub use_nccl_ub fsdp_double_buffer
        sharp_enabled_group use_sharp batch_p2p_comm batch_p2p_sync use_ring_exchange_p2p
        overlap_p2p_communication_warmup_flush deallocate_pipeline_outputs variable_seq_lengths
        symmetric_ar_type tp_comm_bulk_* tp_comm_split_* tp_comm_atomic_* tp_comm_overlap_*
        tp_comm_* no_clone_scatter_output_in_embedding moe_router_* moe_permute_fusion
        moe_router_fusion moe_apply_probs_on_input overlap_moe_expert_parallel_comm
        delay_wgrad_compute ep_overlap_early_attn_memory_release moe_pad_* moe_use_legacy_*
        cuda_graph_* disable_symmetric_registration use_fused_weighted_squared_relu
        glu_linear_offset activation_func_* use_te_activation_func keep_fp8_transpose_cache
        disable_parameter_transpose_cache tp_only_amax_red scale_* use_kitchen*""",
    "memory or precision of the optimizer": """
        optimizer optimizer_cpu_offload optimizer_offload_* use_torch_optimizer_for_cpu_offload
        overlap_cpu_optimizer_d2h_h2d pin_cpu_grads pin_cpu_params no_pin_cpu_* cpu_offloading*
        cpu_optimizer offload_* fine_grained_activation_offloading min_offloaded_tensor_size
        use_precision_aware_optimizer main_grads_dtype main_params_dtype exp_avg_dtype
        exp_avg_sq_dtype store_param_remainders no_store_param_remainders muon_*
        distribute_saved_activations grad_reduce_in_* reuse_grad_buf_*
        num_distributed_optimizer_instances zero_stage preserve_fp32_weights""",
    "another precision": """
        fp8 fp8_* fp4 fp4_* first_last_layers_bf16 num_layers_at_*_in_bf16 no_fp8_wgrad
        fp8_wgrad transformer_engine_precision""",
    "sharded data parallelism": """
        use_torch_fsdp2 megatron_fsdp_* use_megatron_fsdp use_custom_fsdp use_fsdp*
        data_parallel_sharding* suggested_communication_unit_size outer_dp_sharding_strategy
        fsdp_* torch_fsdp2_* init_model_with_*""",
    "batch sizes that change during the run": "rampup_batch_size batch_size_schedule",
    "recomputation": """
        recompute_modules moe_layer_recompute checkpoint_in_cpu
        num_microbatches_with_partial_activation_checkpoints""",
    "another kind of attention": """
        window_size window_attn_skip_freq no_rope_freq softmax_type linear_* dsa_*
        experimental_* attention_sink_* max_seqlen_per_dp_cp_rank hybrid_context_parallel""",
    "experts": "moe_* expert_* num_experts num_shared_experts enable_shared_expert",
    "more of the model": """
        mtp_* heterogeneous_* kv_lora_* q_lora_* qk_head_dim qk_pos_emb_head_dim v_head_dim
        cache_mla_latents encoder_* pipeline_model_parallel_split_rank
        standalone_embedding_stage mrope_section openai_gelu quick_geglu""",
}
"""What it concerns -> names that Megatron-LM knows and the simulator does not yet."""

OTHER_MODELS: Mapping[str, str] = {
    "num_experts": "a mixture of experts",
    "multi_latent_attention": "multi-latent attention",
    "hybrid_override_pattern": "a hybrid of Mamba and attention",
    "hybrid_attention_ratio": "a hybrid of Mamba and attention",
    "is_hybrid_model": "a hybrid of Mamba and attention",
    "decoder_seq_length": "an encoder and decoder",
    "linear_attention_type": "linear attention",
    "linear_attention_freq": "linear attention",
    "experimental_attention_variant": "an experimental attention",
    "perform_rl_step": "reinforcement learning",
    "retro_project_dir": "retrieval (Retro)",
}
"""Argument -> what it makes of the model. Without it another model would be simulated."""

VOCABULARIES: Mapping[str, int] = {
    "gpt2bpetokenizer": 50257,
    "gpt2": 50257,
    "llama2tokenizer": 32000,
    "llama-2": 32000,
    "llama2": 32000,
    "llama-3": 128256,
    "llama3": 128256,
    "llama_3": 128256,
    "mixtral": 32000,
    "mistral": 32000,
    "qwen2": 151936,
    "qwen3": 151936,
    "qwen": 151936,
    "deepseek": 129280,
    "nemotron": 256000,
    "gemma": 256000,
}
"""Part of a tokenizer's type or path, in lower case -> entries, as the models' configurations
publish them. Earlier lines win."""


def reason(table: Mapping[str, str], name: str) -> str | None:
    """Under which heading of `IGNORED` or `NOT_MODELLED` an argument stands, if any."""
    for heading, names in table.items():
        if any(fnmatchcase(name, pattern) for pattern in names.split()):
            return heading
    return None


def listed_names() -> list[str]:
    """All names of both tables that are spelled out."""
    tables = (*IGNORED.values(), *NOT_MODELLED.values())
    return [name for names in tables for name in names.split() if "*" not in name]
