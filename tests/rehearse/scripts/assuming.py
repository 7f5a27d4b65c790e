"""A model whose numbers nobody computes: what it does follows from assumptions. Prints what it did."""
import math

import torch
import torch.nn.functional as F

TOKENS, WIDTH, EXPERTS = 96, 64, 8
model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)).cuda()
router = torch.nn.Linear(WIDTH, EXPERTS).cuda()
vocabulary = torch.nn.Linear(WIDTH, 4096).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
steps = 0
for _ in range(3):
    hidden = model(torch.randn(TOKENS, WIDTH, device="cuda"))
    weights, chosen = torch.topk(router(hidden).softmax(-1), 2)
    mask = F.one_hot(chosen, EXPERTS).permute(2, 1, 0)
    sizes = [torch.where(each)[1].shape[0] for each in mask]
    loss = (hidden * weights[:, :1]).square().mean()
    if not torch.isfinite(loss):
        continue
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if math.isnan(norm.item()) or torch.isinf(norm):
        continue
    if (~torch.isfinite(norm) | (norm < 0)).any():  # as DeepSpeed asks
        continue
    optimizer.step()
    steps += 1
    print(f"loss {loss.item():.2f}")
print("steps", steps)
print("sizes", *sizes)

with torch.no_grad():
    scores = model(torch.randn(TOKENS, WIDTH, device="cuda"))[:, 0]
    print("selected", hidden[scores > 0.5].shape[0])
    tokens = torch.tensor([[1], [2]], device="cuda")
    while tokens.shape[1] < 12:
        logits = vocabulary(torch.zeros(2, WIDTH, device="cuda"))
        following = torch.multinomial(logits.softmax(-1), 1) if tokens.shape[1] % 2 else logits.argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, following], dim=1)
        if (tokens[:, -1] == 2).all():
            break
    print("generated", *tokens.shape, bool((tokens < 4096).all()))
scaler = torch.amp.GradScaler("cuda")
scaler.scale(model(torch.randn(2, WIDTH, device="cuda")).sum()).backward()
scaler.step(optimizer)
scaler.update()
print("scale", scaler.get_scale())
