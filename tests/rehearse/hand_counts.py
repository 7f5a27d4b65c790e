"""Bytes that the LoRA, QLoRA, 8-bit and offload scripts hold after their last step, counted by hand from shapes, without a rehearsal. Requested bytes:
what the allocator makes of them is not counted."""

FP32, BF16, INT64 = 4, 2, 8
# cuBLAS has a handle for each thread that multiplies, forward's and backward's; 32 MiB each on compute capability 9.0 (PyTorch's getChosenWorkspaceSize).
CUBLAS_WORKSPACES = 2 * (32 << 20)
CUBLASLT_WORKSPACE = 1 << 20  # for products that add a bias


def adam(elements):
    return 2 * FP32 * elements  # exp_avg and exp_avg_sq


def bf16_weight(elements):
    return BF16 * elements


def nf4_weight(elements):
    """Two values a byte and 16 codes; a byte of absmax for each 64 values, quantized with 256 codes, an fp32 absmax for each 256 of them, and an offset."""
    absmax = elements // 64
    return elements // 2 + 16 * FP32 + absmax + 256 * FP32 + absmax // 256 * FP32 + FP32


def adapted_llama(weight, other_bytes):
    """scripts/adapters.py: `weight(elements)` is what a frozen projection takes, `other_bytes` the size of an element of tables and norms."""
    hidden, feed_forward, layers, key_value, vocabulary, rank = 512, 1408, 4, 256, 4096, 16
    projections = 2 * weight(hidden * hidden) + 2 * weight(key_value * hidden) + 3 * weight(feed_forward * hidden)
    adapters = rank * (hidden + hidden) + rank * (hidden + key_value)  # A and B of q_proj and of v_proj, in fp32
    tables_and_norms = 2 * vocabulary * hidden + (2 * layers + 1) * hidden
    rope_frequencies = 2 * FP32 * 32  # half a head's 64 dimensions, and the original ones
    last_ids = INT64 * 2 * 256
    return layers * (projections + FP32 * adapters + adam(adapters)) + other_bytes * tables_and_norms + rope_frequencies + last_ids


def six_linears(weight_state, bias_state):
    """scripts/low_memory_optimizers.py"""
    weight, bias = 2048 * 2048, 2048
    return 6 * (FP32 * (weight + bias) + weight_state(weight) + bias_state(bias))


def adam_of_8_bits(elements):
    """For exp_avg and for exp_avg_sq: a byte a value, an fp32 scale for each 256 of them, 256 codes."""
    return 2 * (elements + elements // 256 * FP32 + 256 * FP32)


def fused_adam(elements):
    return adam(elements) + FP32  # with `step` on the GPU


def eager_experts(rows):
    """scripts/experts.py at its peak: backward of the last expert that has tokens, `rows` of them, where the product of gate and up is differentiated.

    For backward, forward keeps of each row that an expert takes: what goes into it, what comes out, and that times its weight, which index_add_ keeps (one
    width each), gate and up, the gate after SiLU, the product of both (one inner width each), the weight and two indices. At the peak, this expert's product
    and what came out are gone; gradients of the product and of its factors are there. Experts before it in backward have no tokens, but gradients of zeros.
    """
    tokens, width, inner, experts, chosen = 8192, 512, 1024, 8, 2
    expert = FP32 * 3 * inner * width
    kept = tokens * chosen * (FP32 * (3 * width + 4 * inner + 1) + 2 * INT64)
    without_tokens = experts - tokens * chosen // rows
    gradients = without_tokens * expert + FP32 * inner * width  # and that of the last matrix of this one
    x_and_out = 2 * FP32 * tokens * width
    return CUBLAS_WORKSPACES + experts * expert + x_and_out + kept + gradients + FP32 * rows * (2 * inner - 2 * width)

RESIDENT_BYTES = {
    "lora": CUBLAS_WORKSPACES + adapted_llama(bf16_weight, BF16),
    # PEFT's preparation makes fp32 of all that isn't quantized; bitsandbytes keeps 256 codes of its own.
    "qlora": CUBLAS_WORKSPACES + adapted_llama(nf4_weight, FP32) + 256 * FP32,
    # torchao quantizes no state of fewer than 4096 values, as those of biases are.
    "adamw-8bit": CUBLAS_WORKSPACES + CUBLASLT_WORKSPACE + six_linears(adam_of_8_bits, adam),
    # Nor does it offload them: only the weights' states are on the host.
    "cpu-offload-optimizer": CUBLAS_WORKSPACES + CUBLASLT_WORKSPACE + six_linears(lambda _: 0, fused_adam),
}
