"""Programs that need PyTorch alone: how each is called, and what a count by hand says of it. Those of library_list.py need more."""
from dataclasses import dataclass

from hand_counts import CUBLASLT_WORKSPACE
from program_counts import (BATCH, BF16, CUBLAS_WORKSPACE, CUBLAS_WORKSPACES, FP32, INT64, LANGUAGE_MODEL, LAYERS, LOGITS, SEQUENCE, VOCABULARY, WIDTH, WORKSPACES,
                            WORKSPACES_OF_8_9, Count, block, feed_forward, forward_only, kept_by_blocks, language_model, linear, small, tiny, training)


@dataclass(frozen=True)
class Program:
    call: str  # a script of programs/ and its arguments
    count: Count
    cards: str = "1xH100-80GB"
    flags: tuple = ()  # of `vramfit rehearse`
    ranks: int = 0  # that torchrun starts
    prints: tuple = ()  # lines that follow from shapes, values and assumptions
    assumed: bool = False  # sizes or branches follow from values that nobody computes
    survives: bool = False  # an out-of-memory error
    in_ci: bool = False
    phases: tuple = ()  # (phase and step, the least and the most bytes at its peak)
    own_python: str = ""  # the variable that names a Python with its libraries, if they don't go together with those of the other programs


ALONE = ("--ranks", "0")


def loops():
    ids = INT64 * BATCH * SEQUENCE
    hidden = FP32 * BATCH * SEQUENCE * WIDTH
    few_kept = FP32 * (LAYERS + 2) * BATCH * SEQUENCE * WIDTH  # with checkpointing: what goes into each block
    one_block = kept_by_blocks(layers=1)
    half = kept_by_blocks(BF16)
    return {
        "accumulation": Program("loops.py accumulation", tiny(), in_ci=True),
        "skip-nonfinite": Program("loops.py skip_nonfinite", tiny(rest=FP32), prints=("steps 3",), in_ci=True),
        # The assumed loss is below the best so far once; then it is 0.5 again, and patience ends after two more steps.
        "early-stop": Program("loops.py early_stop", tiny(), prints=("steps 3",), assumed=True, in_ci=True),
        # The loss, the scale and the number of steps since it grew.
        "grad-scaler": Program("loops.py grad_scaler", tiny(rest=3 * FP32, kept=half, activations=BF16), prints=("scale 65536.0",), in_ci=True),
        "moving-average": Program("loops.py moving_average", tiny(weights=2 * FP32, states=2 * FP32), in_ci=True),
        "swa": Program("loops.py stochastic_weight_averaging", tiny(weights=2 * FP32, states=FP32)),
        # Logits, hidden states and ids are variables of the loop; blocks are recomputed by backward's thread, which takes a cuBLASLt workspace of its own.
        "checkpointing": Program("loops.py checkpointing", tiny(rest=FP32 * LOGITS + hidden + ids + CUBLASLT_WORKSPACE, kept=few_kept + one_block), in_ci=True),
        "optimizer-in-backward": Program("loops.py optimizer_in_backward", tiny(gradients=0)),
        "workers": Program("loops.py workers", tiny()),
        "resumed": Program("loops.py saved_and_resumed", tiny(), in_ci=True),
        "flash-fallback": Program("loops.py flash_fallback", tiny(weights=BF16, gradients=BF16, activations=BF16), in_ci=True),
    }


def convolution():
    channels, size, rows = (3, 64, 128, 256), 128, 16
    weights = sum(9 * before * after for before, after in zip(channels, channels[1:])) + 2 * sum(channels[1:]) + linear(256, 1000)
    averages = FP32 * 2 * sum(channels[1:]) + 3 * INT64
    outputs = [FP32 * rows * count * (size >> depth) ** 2 for depth, count in enumerate(channels)]
    return small(weights, outputs[0] + 2 * sum(outputs[1:]), max(outputs), states=FP32, rest=averages)


def layers():
    lstm = 4 * 512 * (256 + 512) + 4 * 512 * (512 + 512) + 2 * 2 * 4 * 512
    ids = INT64 * (4096 + 512)
    touched = 4096 * (64 * FP32 + INT64)
    custom = 4 * feed_forward(512, 2048)
    samples = feed_forward(512, 1024) - 1024 * 512 - 512 + linear(1024, 256)
    gan = linear(128, 1024) + linear(1024, 4096) + linear(4096, 1024) + linear(1024, 1)
    made = FP32 * 256 * 4096
    parts = FP32 * 256 * sum(50 + 30 * (2 + number) for number in range(4))
    return {
        # Gates and cells of 64 times and 2 layers.
        "recurrent": Program("layers.py recurrent", small(lstm + linear(512, 128), FP32 * 16 * 64 * (256 + 2 * 5 * 512), FP32 * 16 * 64 * 2048), in_ci=True),
        "embedding-bag": Program("layers.py embedding_bag", training(12 * (200_000 * 64 + linear(64, 1)) + CUBLAS_WORKSPACES + ids, touched, 0, 2 * touched), in_ci=True),
        "custom-function": Program("layers.py custom_function", small(custom, FP32 * 2048 * 4 * (512 + 2 * 2048), FP32 * 2048 * 2048), in_ci=True),
        # Weights before and after, and gradients of 32 samples.
        "torch-func": Program("layers.py per_sample_gradients", training(2 * FP32 * samples + CUBLAS_WORKSPACES // 2, 32 * FP32 * samples, 0, 32 * FP32 * 512 * 1024), in_ci=True),
        "gan": Program("layers.py adversarial", small(gan, 0, 4 * made, rest=made + 2 * FP32 * 256), in_ci=True),
        "convolution": Program("layers.py convolution", convolution(), in_ci=True),
        "nested": Program("layers.py nested", small(feed_forward(256, 1024), 5 * parts, 4 * parts, rest=parts)),
    }


def steers():
    mlp = feed_forward(WIDTH, 4 * WIDTH)
    wide = FP32 * 4096 * 4 * WIDTH
    experts = 16 * mlp + 16 * WIDTH
    out = FP32 * 8192 * WIDTH
    routed = 2 * (2 * out + 8 * out) + out  # tokens go to two experts each: what goes in, comes out, and 4 widths before and after the activation
    weights = FP32 * experts
    trained = 3 * weights + WORKSPACES + out  # what is held between steps
    # Forward begins with that and ends with all that it keeps; backward begins so, and makes gradients while it lets go; the optimizer has gradients, and copies
    # of them as it works on several tensors at once.
    def by_phase(largest):
        return (("load first", weights, weights + 2 * out), ("forward steady", trained + routed - out, trained + routed + 4 * largest),
                ("backward steady", trained + routed - out, trained + routed + weights + 4 * largest),
                ("optimizer steady", trained + weights, trained + 2 * weights + 2 * out))
    one = CUBLAS_WORKSPACE + CUBLASLT_WORKSPACE  # of one thread: nothing goes backward
    beams = 4 * INT64 * (24 + 3) + 4 * FP32 * (VOCABULARY + 1)
    sampled = 4 * INT64 * (40 + 1) + 4
    attention = FP32 * 4 * 40 * (WIDTH * 16 + 3 * VOCABULARY)
    counts = [f"counts {text}" for text in ("130 127 122 122 153 128 128 114", "122 126 141 122 126 109 151 127", "126 139 126 141 133 120 119 120")]
    hidden = FP32 * 4 * 256 * WIDTH
    rows = FP32 * 514 * WIDTH
    return {
        "unpadding": Program("steers.py unpadding", small(mlp, 9 * rows, 4 * hidden, rest=hidden + rows + 4 * 256 + 4 * INT64),
                             prints=("rows 394", "rows 454", "rows 514"), in_ci=True),
        "tolist-split": Program("steers.py tolist_split", small(8 * linear(WIDTH, WIDTH), 2 * FP32 * 1024 * WIDTH, 4 * FP32 * 1024 * WIDTH,
                                                                rest=FP32 * 1024 * WIDTH + INT64 * 1024), prints=tuple(counts), in_ci=True),
        "routing-balanced": Program("steers.py routing", small(experts, routed, out, rest=out), prints=("sizes" + 16 * " 1024",), assumed=True, in_ci=True,
                                    phases=by_phase(out)),
        "routing-worst": Program("steers.py routing", small(experts, routed, 4 * out, rest=out), flags=("--set", "routing=worst"),
                                 prints=("sizes 8192 8192" + 14 * " 0",), assumed=True, phases=by_phase(4 * out)),
        "hard-examples": Program("steers.py hard_examples", small(mlp, 2 * wide, wide, rest=2 * FP32 * 4096), prints=("rows 4096",), assumed=True),
        "beam-search": Program("steers.py beam_search", forward_only(FP32 * LANGUAGE_MODEL + one + beams, 0, attention), prints=("length 24",), assumed=True, in_ci=True),
        "sampling": Program("steers.py sampling", forward_only(FP32 * LANGUAGE_MODEL + one + sampled, 0, attention), prints=("length 40",), assumed=True),
    }


def limits():
    large = language_model(50, 2048)
    stack = 8 * linear(4096, 4096)
    rows = FP32 * 131072 * 4096  # a tensor of the batch that works: its input and what each layer makes of it are kept; twice that is more than the card has
    return {
        "too-large": Program("limits.py too_large", training(12 * large, FP32 * large, 0, 0), cards="1xRTX4090", in_ci=True),
        "halved-batch": Program("limits.py halved_batch", small(stack, 9 * rows, 0, states=0, workspaces=WORKSPACES_OF_8_9), cards="1xRTX4090",
                                prints=("rows 131072",), survives=True, in_ci=True),
    }


def captured():
    mlp = feed_forward(WIDTH, 2048)
    batch = FP32 * 1024 * WIDTH
    four = 2 * CUBLAS_WORKSPACES + 2 * CUBLASLT_WORKSPACE  # of the stream for warming up and of the captured one
    return {
        # Gradients lie in the graph's pool; the generator's seed and offset are in memory.
        "cuda-graph": Program("captured.py cuda_graph", training(2 * FP32 * mlp + batch + 2 * INT64 + four, 0, 4 * batch, 4 * batch)),
        # Input, output and their gradients are the graph's, as are the gradients of weights.
        "graphed-callable": Program("captured.py graphed_callable", training(4 * FP32 * mlp + batch + 2 * INT64 + four, FP32 * mlp, 0, 4 * batch)),
        "compile": Program("captured.py compiled", tiny(kept=kept_by_blocks() // 2)),
    }


def sharded(share_of_states, rest=0):
    """Four ranks, of which one is rehearsed. Least: what is held, and what forward keeps. Most: also all weights and gradients as if nothing were sharded, twice."""
    held = int(share_of_states * LANGUAGE_MODEL) + WORKSPACES + rest
    kept = kept_by_blocks() + 2 * FP32 * LOGITS * (SEQUENCE - 1) // SEQUENCE
    return Count(held, held + kept, held + 4 * FP32 * LANGUAGE_MODEL + kept + kept // 4 + 4 * FP32 * LOGITS)


def ranks():
    part = 2 * WIDTH * WIDTH + 4 * WIDTH // 4 + WIDTH  # of a feed-forward on 4 ranks; what comes out has its whole bias on each
    tensor = training(12 * LAYERS * part + WORKSPACES, FP32 * LAYERS * part, FP32 * LAYERS * 1024 * 2 * WIDTH, FP32 * 1024 * WIDTH)
    stage = VOCABULARY * WIDTH + LAYERS // 2 * block()
    hidden = FP32 * SEQUENCE * WIDTH
    four = {"cards": "4xH100-80GB", "flags": ALONE}
    return {
        "ddp": Program("ranks.py data_parallel", tiny(rest=FP32 * LANGUAGE_MODEL), **four),  # DDP's buckets
        # Each rank has the states of some of the parameters, about as many as the others.
        "zero-redundancy": Program("ranks.py zero_redundancy", tiny(states=2, rest=FP32 * LANGUAGE_MODEL, within=0.001), **four),
        "fsdp1": Program("ranks.py fsdp1", sharded(4), **four),  # the flat gradient stays
        "fsdp2": Program("ranks.py fsdp2", sharded(3), **four),
        "tensor-parallel": Program("ranks.py tensor_parallel", tensor, **four),
        # The first of two stages: the embedding and half of the blocks, four micro-batches of one row, of which two are under way.
        "pipeline": Program("ranks.py pipeline", training(12 * stage + WORKSPACES, FP32 * stage, 2 * kept_by_blocks(layers=2) // 4, 4 * hidden, within=0.05),
                            cards="2xH100-80GB", ranks=2),
    }


ROWS = {**loops(), **layers(), **steers(), **limits(), **captured(), **ranks()}
