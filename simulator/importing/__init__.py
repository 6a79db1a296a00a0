"""Bring what users have: Megatron-LM launch scripts and Hugging Face configurations."""
