"""How fast is it? GPUs, nodes and fabrics; seconds of kernels and collectives."""
