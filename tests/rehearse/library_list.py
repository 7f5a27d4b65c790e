"""Programs that need the libraries of requirements-programs.txt: how each is called, and what a count by hand says of it."""
from dataclasses import replace

from program_counts import BF16, CUBLAS_WORKSPACE, CUBLAS_WORKSPACES, FP32, INT64, LANGUAGE_MODEL, LAYERS, WIDTH, WORKSPACES, Count, linear, tiny, training
from program_list import ALONE, Program

VOCABULARY = 4096
FEW = 0.002  # what libraries keep besides: frequencies of rotary embeddings, steps of optimizers, sums of losses, inputs of the last step


def llama_layer(hidden, inner, key_value):
    return 2 * hidden * hidden + 2 * hidden * key_value + 3 * hidden * inner + 2 * hidden


def llama(hidden=512, inner=1408, layers=4, key_value=256):
    return 2 * VOCABULARY * hidden + layers * llama_layer(hidden, inner, key_value) + hidden


LLAMA = llama()
SCORES = LLAMA - (VOCABULARY - 1) * 512  # the same with a head of one number
ADAPTERS = 16 * 4 * (4 * 512 + 2 * (512 + 256) + 3 * (512 + 1408))  # of rank 16 on all linears but the head


def llama_kept(element, tokens, layers=4, hidden=512, inner=1408, key_value=256):
    """At least: what goes into the linears (twice the hidden state, attention's, the product), q, k and v, and gate and up."""
    return element * tokens * layers * (2 * hidden + 2 * hidden + 2 * key_value + 3 * inner)


def llama_training(held, tokens, gradients=FP32 * LLAMA, element=BF16, checkpointing=False, workspaces=CUBLAS_WORKSPACES, within=FEW, logits=1):
    """Half-precision activations under autocast, with copies of the weights; logits also in fp32, and their logarithms. More of them where the norms keep
    fp32: twice as much at most."""
    kept = element * tokens * 512 * 4 if checkpointing else llama_kept(element, tokens)
    kept += logits * (element + FP32) * tokens * VOCABULARY
    counted = training(int(held) + workspaces, gradients, kept, FP32 * tokens * VOCABULARY, within)
    return Count(counted.held, counted.least, counted.most + 2 * kept + BF16 * LLAMA, within)


def experts():
    """Weights, gradients and both moments in bf16. Each token goes to `chosen` experts; the batched implementation copies the experts' weights for each."""
    hidden, layers, tokens = 512, 2, 4 * 512
    norms, attention = 2 * hidden, 4 * hidden * hidden
    latent = hidden * 8 * 96 + hidden * (128 + 32) + 128 + 128 * 8 * 128 + 8 * 64 * hidden
    # family: parameters of a layer, the width of an expert, how many each token is sent to
    families = {
        "mixtral": (attention + 8 * 3 * hidden * 1024 + 8 * hidden + norms, 1024, 2),
        "qwen3_moe": (attention + 2 * 64 + 32 * 3 * hidden * 256 + 32 * hidden + norms, 256, 4),
        "deepseek_v2": (latent + 16 * 3 * hidden * 256 + 16 * hidden + 3 * hidden * 256 + norms, 256, 4),
        "gpt_oss": (attention + 4 * hidden + 8 + 8 * (3 * hidden * 1024 + 2 * 1024 + hidden) + 8 * hidden + 8 + norms, 1024, 2),
    }
    rows = {}
    for family, (layer, inner, chosen) in families.items():
        parameters = 2 * VOCABULARY * hidden + layers * layer + hidden
        sent = tokens * chosen
        for implementation in ("eager", "grouped_mm", "batched_mm"):
            weights = sent * 3 * hidden * inner if implementation == "batched_mm" else 0
            kept = BF16 * layers * (sent * (hidden + 3 * inner) + weights + tokens * 7 * hidden) + (BF16 + FP32) * tokens * VOCABULARY
            largest = max(BF16 * sent * 2 * inner * hidden * (implementation == "batched_mm"), FP32 * tokens * VOCABULARY)
            workspaces = WORKSPACES if family == "gpt_oss" else CUBLAS_WORKSPACES  # attention of gpt_oss has biases
            counted = training(3 * BF16 * parameters + workspaces, BF16 * parameters, kept, largest, FEW)
            rows[f"{family}-{implementation}"] = Program(f"experts.py {family} {implementation}", counted, prints=(f"parameters {parameters}",),
                                                         assumed=implementation == "eager")
    return rows


def bert_like(hidden, inner, bias=True):
    return 4 * linear(hidden, hidden, bias) + linear(hidden, inner, bias) + linear(inner, hidden, bias)


def speech():
    d, norm = 256, 2 * 256
    encoder = 3 * 80 * d + d + 3 * d * d + d + 2 * (bert_like(d, 1024) - d + 2 * norm) + norm  # the key has no bias
    decoder = VOCABULARY * d + 448 * d + 2 * (bert_like(d, 1024) + 4 * linear(d, d) - 2 * d + 3 * norm) + norm
    frozen = 1500 * d
    whisper = training(12 * (encoder + decoder) + FP32 * frozen + WORKSPACES, FP32 * (encoder + decoder), FP32 * 2 * 1500 * 2 * 16 * d, FP32 * 2 * 4 * 1500 * 1500, FEW)
    convolutions = 128 * 10 + 128 * 128 * (4 * 3 + 2 * 2) + 2 * 128
    position = d * (d // 4) * 16 + 16 + d
    wav2vec2 = convolutions + 2 * 128 + linear(128, d) + position + norm + 2 * (bert_like(d, 1024) + 2 * norm) + d + linear(d, 64)
    steps = 16000 // 5  # after the first convolution
    heard = training(12 * wav2vec2 + WORKSPACES, FP32 * wav2vec2, FP32 * 2 * 128 * steps * 4, FP32 * 2 * 128 * steps * 4, FEW)
    return {"whisper": Program("families.py whisper", whisper), "wav2vec2": Program("families.py wav2vec2", heard)}


def seen_and_read():
    d, images, text = 256, 8 * 12 + 16 * 16, 2 + 2 * 2 + (8 * 12 + 16 * 16) // 4 + 20
    vision_block = 2 * d + linear(d, 3 * d) + linear(d, d) + 2 * linear(d, 512) + linear(512, d)
    vision = 3 * 2 * 14 * 14 * d + 2 * vision_block + d + linear(4 * d, 4 * d) + linear(4 * d, d)
    words = 2 * VOCABULARY * d + 2 * (llama_layer(d, 512, 128) + d + 2 * 128) + d
    kept = FP32 * 2 * (images * 9 * d + text * 9 * d) + 2 * FP32 * text * VOCABULARY
    t5 = VOCABULARY * d + 2 * (bert_like(d, 1024, False) + 2 * d) + 2 * (bert_like(d, 1024, False) + 4 * d * d + 3 * d) + 2 * 32 * 4 + 2 * d
    t5_kept = FP32 * 4 * (128 * 2 * 12 * d + 64 * 2 * 16 * d) + 2 * FP32 * 4 * 64 * VOCABULARY
    bert = (VOCABULARY + 512 + 2) * d + 2 * d + 2 * (bert_like(d, 1024) + 4 * d) + linear(d, d) + linear(d, 3)
    bert_kept = FP32 * 4 * 128 * 2 * 14 * d
    return {
        "qwen2.5-vl": Program("families.py qwen_vision", training(12 * (vision + words) + WORKSPACES + FP32 * images * 3 * 2 * 14 * 14, FP32 * (vision + words), kept, FP32 * text * VOCABULARY, FEW),
                              prints=(f"rows {text}",)),
        "t5": Program("families.py t5", training(12 * t5 + CUBLAS_WORKSPACES, FP32 * t5, t5_kept, FP32 * 4 * 64 * VOCABULARY, FEW)),
        "bert": Program("families.py bert", training(12 * bert + WORKSPACES, FP32 * bert, bert_kept, FP32 * 4 * 128 * 1024, FEW)),
    }


def generation():
    held = BF16 * LLAMA + CUBLAS_WORKSPACE
    cache = BF16 * 2 * 4 * 256 * 4 * 63  # keys and values of all but the last token
    most = 3 * 8 * cache + 40 * FP32 * 4 * 64 * VOCABULARY // 4
    beams = Count(held, held + 2 * BF16 * 2 * 4 * 256 * 4 * 39 // 1, held + 6 * most, FEW)
    one = Count(held, held + cache, held + most, FEW)
    return {
        "generate-greedy": Program("families.py generate_greedy", one, prints=("length 64",), assumed=True),
        "generate-sampled": Program("families.py generate_sampled", one, prints=("length 64",), assumed=True),
        "generate-beams": Program("families.py generate_beams", beams, prints=("length 40",), assumed=True),
        "padded-rows": Program("families.py padded_llama", llama_training(6 * LLAMA, 4 * 256, BF16 * LLAMA)),
    }


def trainers():
    full = 12 * LLAMA
    lora = 2 * LLAMA + 12 * ADAPTERS
    four = {"cards": "4xH100-80GB", "flags": ALONE}
    trained = llama_training(full, 2 * 256)
    evaluated = 5 * (BF16 + FP32) * 8 * 256 * VOCABULARY  # logits of four batches of 8 are kept, and those of the one that is evaluated
    short = {"checkpointing": True, "logits": 0}  # TRL's losses go through chunks of logits
    return {
        "trainer-accumulation": Program("trainers.py accumulation", llama_training(full, 2 * 256, checkpointing=True)),
        "trainer-evaluation": Program("trainers.py evaluation", replace(trained, most=trained.most + evaluated)),
        "trainer-fsdp2": Program("trainers.py fsdp2", llama_training(full / 4, 2 * 256, gradients=LLAMA), **four),
        "trainer-auto-batch": Program("trainers.py auto_find_batch_size", Count(full, 12 << 30, 26 << 30, 0.1), cards="1xRTX4090", survives=True),
        "trl-sft": Program("trainers.py sft", llama_training(full, 2 * 100, **short)),
        "trl-dpo": Program("trainers.py dpo", llama_training(full + FP32 * LLAMA, 4 * 50, **short)),
        "trl-grpo": Program("trainers.py grpo", llama_training(full, 4 * 36, **short), assumed=True),
        "trl-rloo": Program("trainers.py rloo", llama_training(full, 4 * 36, **short), assumed=True),
        # The policy and its values are trained; a copy of the policy and the reward, in fp32, are not. The last two have a head of one number.
        "trl-ppo": Program("trainers.py ppo", llama_training(full + 12 * SCORES + FP32 * (LLAMA + SCORES), 4 * 36, gradients=FP32 * (LLAMA + SCORES), **short), assumed=True,
                           own_python="VRAMFIT_PPO_PYTHON"),
        "peft-lora": Program("trainers.py lora", llama_training(lora, 2 * 256, gradients=FP32 * ADAPTERS)),
    }


def engines():
    full = 12 * LLAMA
    four = {"cards": "4xH100-80GB", "flags": ALONE}
    return {
        "accelerate-ddp": Program("engines.py accelerate_ddp", llama_training(full + FP32 * LLAMA, 2 * 256), **four),
        "accelerate-fsdp2": Program("engines.py accelerate_fsdp2", llama_training(full / 4, 2 * 256, gradients=LLAMA), **four),
        "notebook-launcher": Program("notebook.py", llama_training(full + FP32 * LLAMA, 2 * 256), cards="2xH100-80GB"),
        "executable-batch": Program("engines.py executable_batch_size", Count(full, 12 << 30, 26 << 30, 0.1), cards="1xRTX4090", survives=True),
        # bf16 weights, a quarter of the fp32 copies and of the moments; stage 3 has a quarter of all, of the gradients too, and a bucket of 2^20 of them.
        "zero-1": Program("engines.py zero1", llama_training(5 * LLAMA, 2 * 256, gradients=LLAMA), assumed=True, **four),
        "zero-2": Program("engines.py zero2", llama_training(5 * LLAMA, 2 * 256, gradients=LLAMA), assumed=True, **four),
        "zero-3": Program("engines.py zero3", llama_training(4 * LLAMA + BF16 * (1 << 20), 2 * 256, gradients=LLAMA), assumed=True, **four),
        # Gradients are there until the next step begins.
        "lightning-trainer": Program("engines.py lightning_trainer", llama_training(full + FP32 * LLAMA, 2 * 256, gradients=0)),
        "fabric": Program("engines.py fabric", llama_training(full, 2 * 256)),
    }


def resnet_layer(channels, width, first_stride):
    """The parameters of a bottleneck: three convolutions without biases, each with a norm, and a fourth where the shape changes."""
    out = 4 * width
    count = channels * width + 9 * width * width + width * out + 2 * (2 * width + out)
    return count + (channels * out + 2 * out if channels != out or first_stride > 1 else 0)


def resnet50():
    count, channels, norms = 3 * 64 * 49 + 2 * 64, 64, 64
    for number, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for place in range(blocks):
            count += resnet_layer(channels, width, 2 if place == 0 and number > 0 else 1)
            norms += 6 * width + (4 * width if place == 0 else 0)
            channels = 4 * width
    return count + linear(2048, 1000), FP32 * 2 * norms + 53 * INT64


def convnext_atto():
    count, widths = 16 * 3 * 40 + 40 + 2 * 40, (40, 80, 160, 320)
    for number, (width, blocks) in enumerate(zip(widths, (2, 2, 6, 2))):
        if number:
            count += 2 * widths[number - 1] + 4 * widths[number - 1] * width + width
        count += blocks * (49 * width + width + 2 * width + linear(width, 4 * width) + linear(4 * width, width) + width)
    return count + 2 * 320 + linear(320, 1000)


def unet():
    """diffusers' UNet2DConditionModel with stages of 64 and 128, times in 256, and texts in 128."""
    def residual(inputs, outputs):
        return 2 * inputs + linear(9 * inputs, outputs) + linear(256, outputs) + 2 * outputs + linear(9 * outputs, outputs) + (
            linear(inputs, outputs) if inputs != outputs else 0)

    def transformer(d):
        own, crossed = 3 * d * d + linear(d, d), d * d + 2 * 128 * d + linear(d, d)
        return 2 * d + linear(d, d) + 6 * d + own + crossed + linear(d, 8 * d) + linear(4 * d, d) + linear(d, d)

    times = linear(64, 256) + linear(256, 256)
    down = residual(64, 64) + transformer(64) + linear(9 * 64, 64) + residual(64, 128)
    middle = 2 * residual(128, 128) + transformer(128)
    up = residual(256, 128) + residual(192, 128) + linear(9 * 128, 128) + residual(192, 64) + residual(128, 64) + 2 * transformer(64)
    return times + linear(9 * 4, 64) + down + middle + up + 2 * 64 + linear(9 * 64, 4)


def vision():
    images = 8 * 3 * 224 * 224
    resnet, averages = resnet50()
    # Outputs of the first convolution and of its norm, in bf16, and of the three layers of each of the first stage's blocks and their norms.
    resnet_kept = BF16 * 8 * (2 * 64 * 112 * 112 + 3 * 2 * (2 * 64 + 256) * 56 * 56)
    patches = 196 + 1
    vit = 384 * (1 + patches) + linear(768, 384) + 12 * (linear(384, 3 * 384) + linear(384, 384) + linear(384, 1536) + linear(1536, 384) + 4 * 384) + 2 * 384 + linear(384, 1000)
    vit_kept = BF16 * 8 * patches * 12 * 384 * (1 + 3 + 1 + 1 + 4 + 4)
    convnext = convnext_atto()
    diffusion = unet()
    large = FP32 * 8 * 64 * 112 * 112
    return {
        "resnet50": Program("vision.py resnet50", sgd(resnet, averages, resnet_kept + FP32 * images, 8 * large)),
        "timm-vit": Program("vision.py timm_vit", sgd(vit, 0, vit_kept + FP32 * images, 2 * FP32 * vit_kept // 12)),
        "timm-convnext": Program("vision.py timm_convnext", sgd(convnext, 0, BF16 * 8 * 2 * 2 * 9 * 40 * 56 * 56, large)),
        "diffusion": Program("vision.py diffusion", training(12 * diffusion + WORKSPACES, FP32 * diffusion, FP32 * 4 * 32 * 32 * 64 * 12, FP32 * 4 * 32 * 32 * 512 * 4, FEW)),
    }


def sgd(parameters, rest, kept, largest):
    return training(8 * parameters + WORKSPACES + rest, FP32 * parameters, kept, largest, FEW)


def optimizers():
    """States of tensors with fewer than 4096 values are fp32 in 8 and 4 bits; paged states of fewer than 100,000 are not paged."""
    vectors = LAYERS * (2 * 2 * WIDTH + 3 * WIDTH + WIDTH + 4 * WIDTH + WIDTH) + 2 * WIDTH
    matrices = LANGUAGE_MODEL - vectors
    eight = matrices + matrices // 256 * FP32
    four = matrices // 2 + matrices // 128 * FP32 + (4 * LAYERS + 2) * 16 * FP32
    codes = 256 * FP32

    def states(size):
        return tiny(states=0, rest=size, within=FEW)

    return {
        "bitsandbytes-adam-8bit": Program("optimizers.py bitsandbytes_adam", states(2 * eight + 2 * codes + 8 * vectors)),
        "bitsandbytes-paged": Program("optimizers.py bitsandbytes_paged", states(8 * vectors)),
        "bitsandbytes-lion": Program("optimizers.py bitsandbytes_lion", states(eight + codes + 4 * vectors)),
        "torchao-adam-4bit": Program("optimizers.py torchao_adam", states(2 * four + 8 * vectors)),
    }


def others():
    # Megatron: two ranks, each with half of every matrix; norms and the biases of what is summed over ranks are whole.
    layer = linear(WIDTH, 3 * WIDTH) // 2 + WIDTH * WIDTH // 2 + WIDTH + linear(WIDTH, 4 * WIDTH) // 2 + 4 * WIDTH * WIDTH // 2 + WIDTH + 4 * WIDTH
    megatron = VOCABULARY * WIDTH + 4 * layer + 2 * WIDTH
    joined = FP32 * 4 * 256 * 3 * WIDTH // 2  # something as large as q, k and v of one layer stays
    kept = FP32 * 4 * 256 * 4 * (2 * WIDTH + 2 * WIDTH + 3 * WIDTH // 2 + 4 * WIDTH) + FP32 * 4 * 4 * 4 * 256 * 256
    titan = 2 * 2048 * 256 + 6 * (4 * 256 * 256 + 3 * 256 * 768 + 2 * 256) + 256
    titan_kept = BF16 * 4 * 512 * 6 * (7 * 256 + 3 * 768) // 2 + (BF16 + FP32) * 4 * 512 * 2048
    # Gradients are there until the next step begins.
    titan_count = training(4 * titan + CUBLAS_WORKSPACES, 0, titan_kept, FP32 * 4 * 512 * 2048, 0.005)
    return {
        "megatron-core": Program("parallel.py", training(12 * megatron + WORKSPACES + joined, FP32 * megatron, kept, FP32 * 4 * 256 * VOCABULARY, FEW),
                                 cards="2xH100-80GB", flags=ALONE, prints=(f"parameters {megatron}",)),
        "nemo-automodel": Program("nemo.py", llama_training(12 * LLAMA / 4, 2 * 256, gradients=LLAMA), cards="4xH100-80GB", flags=ALONE, own_python="VRAMFIT_NEMO_PYTHON"),
        "torchtitan": Program("titan.py", Count(titan_count.held, titan_count.least, titan_count.most + 2 * FP32 * titan + titan_kept, 0.005), cards="4xH100-80GB", flags=ALONE),
    }


ROWS = {**experts(), **speech(), **seen_and_read(), **generation(), **trainers(), **engines(), **vision(), **optimizers(), **others()}
