"""Models of torchvision, timm and diffusers, made from their classes. Usage: vision.py NAME"""
import sys

import torch
from torch import nn

from tiny import on_card, say_held

STEPS = 3


def classify(model, size, rows=8):
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(STEPS):
        images = torch.randn(rows, 3, size, size, device="cuda").to(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), torch.arange(rows, device="cuda"), label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    del images, loss
    say_held()


def resnet50():
    import torchvision
    classify(on_card(torchvision.models.resnet50), 224)


def timm_vit():
    import timm
    classify(on_card(timm.create_model, "vit_small_patch16_224", pretrained=False), 224)


def timm_convnext():
    import timm
    classify(on_card(timm.create_model, "convnext_atto", pretrained=False), 224)


def faster_rcnn():
    """Boxes are proposed from scores, sorted, and suppressed: sizes follow from them."""
    import torchvision
    model = on_card(torchvision.models.detection.fasterrcnn_mobilenet_v3_large_fpn, weights=None, weights_backbone=None, num_classes=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        images = [torch.rand(3, 320, 400, device="cuda"), torch.rand(3, 300, 300, device="cuda")]
        targets = [{"boxes": torch.tensor([[10.0, 20.0, 100.0, 120.0]]).cuda(), "labels": torch.tensor([number]).cuda()} for number in (1, 2)]
        sum(model(images, targets).values()).backward()
        optimizer.step()
        optimizer.zero_grad()
    del images, targets
    say_held()


def diffusion():
    """Noise at random times is predicted. attention_head_dim is the number of heads."""
    from diffusers import DDPMScheduler, UNet2DConditionModel
    model = on_card(UNet2DConditionModel, sample_size=32, block_out_channels=(64, 128), layers_per_block=1, cross_attention_dim=128, attention_head_dim=2,
                    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), norm_num_groups=32)
    schedule, optimizer = DDPMScheduler(), torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        images, noise = torch.randn(4, 4, 32, 32, device="cuda"), torch.randn(4, 4, 32, 32, device="cuda")
        times = torch.randint(0, 1000, (4,), device="cuda")
        noisy = schedule.add_noise(images, noise, times)
        nn.functional.mse_loss(model(noisy, times, torch.randn(4, 16, 128, device="cuda")).sample, noise).backward()
        optimizer.step()
        optimizer.zero_grad()
    del images, noise, times, noisy
    say_held()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
