"""Training loops of one GPU as people write them. Usage: loops.py NAME"""
import copy
import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tiny import LAYERS, SEQUENCE, VOCABULARY, LanguageModel, loss_of, on_card, say_held, step_of, tokens

STEPS = 3


def accumulation():
    model = on_card(LanguageModel)
    optimizer = torch.optim.AdamW(model.parameters())
    for micro_step in range(4 * STEPS):
        (loss_of(model, tokens(micro_step)) / 4).backward()
        if micro_step % 4 == 3:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    say_held()


def skip_nonfinite():
    model = on_card(LanguageModel)
    optimizer = torch.optim.AdamW(model.parameters())
    done = 0
    for step in range(STEPS):
        loss = loss_of(model, tokens(step))
        if not torch.isfinite(loss):
            continue
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        done += 1
    print("steps", done)
    say_held()


def early_stop():
    model = on_card(LanguageModel)
    optimizer = torch.optim.AdamW(model.parameters())
    best, patience, done = float("inf"), 2, 0
    for step in range(20):
        step_of(model, optimizer, step)
        done += 1
        with torch.no_grad():
            if loss_of(model, tokens(1000)).item() < best - 1e-4:
                best, patience = 0.5, 2
            else:
                patience -= 1
        if patience == 0:
            break
    print("steps", done)
    say_held()


def grad_scaler():
    model = on_card(LanguageModel)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for step in range(STEPS):
        with torch.autocast("cuda", torch.float16):
            loss = loss_of(model, tokens(step))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    print("scale", scaler.get_scale())
    say_held()


def moving_average():
    model = on_card(LanguageModel)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(STEPS):
        step_of(model, optimizer, step)
        with torch.no_grad():
            for kept, new in zip(average.parameters(), model.parameters()):
                kept.lerp_(new, 0.01)
    say_held()


def stochastic_weight_averaging():
    model = on_card(LanguageModel)
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05)
    for step in range(STEPS):
        step_of(model, optimizer, step)
        average.update_parameters(model)
        schedule.step()
    say_held()


def checkpointing():
    model = on_card(LanguageModel)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(STEPS):
        ids = tokens(step)
        x = model.embedding(ids)
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        logits = model.head(model.norm(x))
        nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    say_held()


def optimizer_in_backward():
    model = on_card(LanguageModel)
    optimizers = {p: torch.optim.AdamW([p]) for p in model.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for step in range(STEPS):
        loss_of(model, tokens(step)).backward()
    say_held()


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * STEPS

    def __getitem__(self, index):
        return torch.randint(0, VOCABULARY, (SEQUENCE,), generator=torch.Generator().manual_seed(index))


def workers():
    model = on_card(LanguageModel)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = torch.utils.data.DataLoader(Texts(), batch_size=4, num_workers=2, pin_memory=True, drop_last=True)
    for ids in loader:
        loss_of(model, ids.cuda(non_blocking=True)).backward()
        optimizer.step()
        optimizer.zero_grad()
    say_held()


def saved_and_resumed():
    """A checkpoint in host memory is loaded into a new model, as after a restart."""
    model = on_card(LanguageModel)
    optimizer = torch.optim.AdamW(model.parameters())
    step_of(model, optimizer, 0)
    saved = {name: value.cpu() for name, value in model.state_dict().items()}
    del model, optimizer
    model = on_card(LanguageModel, LAYERS)
    model.load_state_dict(saved)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(1, STEPS):
        step_of(model, optimizer, step)
    say_held()


def flash_fallback():
    """A program that prefers flash-attn and takes PyTorch's attention where that isn't installed."""
    try:
        from flash_attn import flash_attn_func  # noqa: F401
        sys.exit("flash_attn is installed: nothing to fall back from")
    except ImportError:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    model = on_card(LanguageModel).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(STEPS):
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            step_of(model, optimizer, step)
    say_held()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
