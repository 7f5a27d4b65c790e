"""Forms of the loss against torch.nn.functional.cross_entropy: label smoothing, z-loss and an ignored label, over whole logits and
in chunks whose gradients are made in backward or in forward, on 1 and 2 ranks, in fp32.

Loss and all gradients of the first step, taken together, within 1e-6; tensor by tensor within 1e-5, as in parity.py. Each mistake in
the reference must be noticed, by a figure at least ten times its tolerance.
`liger`: the same figures against Liger's fused linear cross entropy, whose Triton kernels are interpreted on the CPU.
Arguments: `cases`, `liger` or `mistakes`.
"""

import os
import sys
from dataclasses import dataclass

import torch
import torch.nn.functional as F

import executor
import reference
from executor import Case, Workplace
from parity import Comparison, compare_gradients, flat, relative, report
from reference import Hyper

HYPER = Hyper(steps=1, warmup=1)
TOLERANCE = 1e-6   # of the loss, and of all gradients together

FORMS = ["full", "chunked:3", "chunked-forward:3"]


@dataclass(frozen=True)
class Terms:
    """What the loss of a token is made of, and which labels have one."""

    label_smoothing: float = 0.0
    z_loss: float = 0.0
    ignore_index: int = reference.IGNORE_INDEX

    @property
    def flags(self):
        return ("--label-smoothing", str(self.label_smoothing), "--z-loss", str(self.z_loss), "--ignore-index", str(self.ignore_index))


ALL = Terms(0.1, 1e-2, 11)


def sum_of_losses(logits, labels, terms):
    """Over the counted labels, and how many there are."""
    logits, labels = logits.reshape(-1, logits.shape[-1]).float(), labels.reshape(-1)
    entropy = F.cross_entropy(logits, labels, ignore_index=terms.ignore_index, label_smoothing=terms.label_smoothing, reduction="sum")
    counted = labels != terms.ignore_index
    return entropy + terms.z_loss * (torch.logsumexp(logits, -1) ** 2 * counted).sum(), int(counted.sum())


def by_torch(model, ids, labels, terms):
    return sum_of_losses(reference.logits_of(model, ids), labels, terms)


def by_liger(model, ids, labels, terms):
    """The sum over the counted labels from the last hidden states and the head's weight, without whole logits."""
    from liger_kernel.ops import LigerFusedLinearCrossEntropyFunction

    hidden, labels = model.model(input_ids=ids).last_hidden_state, labels.reshape(-1)
    loss, *_ = LigerFusedLinearCrossEntropyFunction.apply(hidden.reshape(len(labels), -1), model.lm_head.weight, labels, None, None,
                                                          terms.ignore_index, terms.z_loss, terms.label_smoothing, "sum")
    return loss, int((labels != terms.ignore_index).sum())


def interpret_triton():
    """To be called before Triton is imported. Its interpreter makes integers of arrays with one element, which NumPy 2.4 refuses."""
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_with_index(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_with_index


def expected(place, case, terms, losses=by_torch):
    """Loss and gradients of the first step: summed over micro-batches, divided by the labels counted in all of them."""
    model = reference.build(executor.model_path(place.family), place.state)
    total, count = 0.0, 0
    for ids, labels in executor.batches(case, place.data, 1)(1):
        loss, counted = losses(model, ids, labels, terms)
        loss.backward()
        total, count = total + float(loss.detach().double()), count + counted
    return total / count, {name: p.grad / count for name, p in model.named_parameters()}


def compare(case, run, truth):
    c = Comparison()
    loss, gradients = truth
    c.hold("loss", "step 1", abs(run.losses[0] - loss) / abs(loss), TOLERANCE)
    names = sorted(gradients)
    c.hold("all gradients", "step 1", relative(flat(run.gradients, names), flat(gradients, names)), TOLERANCE)
    compare_gradients(c, run.gradients, gradients, executor.config_of(case.family))
    return c


def liger():
    interpret_triton()
    place, ok = Workplace("llama"), True
    for terms in (Terms(), ALL):
        case = Case("llama", ranks=1, micro_batch=4, accumulation=2, extra=terms.flags)
        truth = expected(place, case, terms, by_liger)
        for form in FORMS:
            case = Case("llama", ranks=1, micro_batch=4, accumulation=2, loss=form, extra=terms.flags)
            ok &= report(case, compare(case, place.executor(case, HYPER), truth))
    wrong = compare(case, place.executor(case, HYPER), expected(place, case, Terms(), by_liger))
    print("ok   noticed:" if wrong.failures else "FAIL not noticed:", "Liger's without smoothing and z-loss, every label counted")
    return ok and bool(wrong.failures)


def cases():
    ok = True
    every_term = [Terms(label_smoothing=0.1), Terms(z_loss=1e-2), Terms(ignore_index=11), ALL]
    for family, all_terms in [("llama", every_term), ("gemma2", [ALL]), ("gpt2", [ALL])]:   # of gemma2, logits have a softcap
        place = Workplace(family)
        for terms in all_terms:
            for ranks in (1, 2):
                truth = None
                for form in FORMS:
                    case = Case(family, ranks=ranks, micro_batch=4 // ranks, accumulation=2, loss=form, extra=terms.flags)
                    truth = truth or expected(place, case, terms)
                    ok &= report(case, compare(case, place.executor(case, HYPER), truth))
    return ok


def mistakes():
    place, ok = Workplace("llama"), True
    case = Case("llama", ranks=2, loss="chunked-forward:3", extra=ALL.flags)
    run = place.executor(case, HYPER)
    ok &= report(case, compare(case, run, expected(place, case, ALL)))
    for name, wrong in {"label smoothing 0.1 -> 0.11": Terms(0.11, ALL.z_loss, ALL.ignore_index), "no label smoothing": Terms(0, ALL.z_loss, ALL.ignore_index),
                        "z-loss 0.01 -> 0.011": Terms(0.1, 0.011, ALL.ignore_index), "no z-loss": Terms(0.1, 0, ALL.ignore_index),
                        "every label counts": Terms(0.1, ALL.z_loss), "another label is ignored": Terms(0.1, ALL.z_loss, 12)}.items():
        c = compare(case, run, expected(place, case, wrong))
        factor = min(c.worst[what][0] / TOLERANCE for what in ("loss", "all gradients"))
        noticed = bool(c.failures) and factor >= 10
        print(f"{'ok  ' if noticed else 'FAIL'} mistake {name}: {factor:.0f} times the tolerance", flush=True)
        ok &= noticed
    return ok


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(0 if {"cases": cases, "liger": liger, "mistakes": mistakes}[sys.argv[1]]() else 1)
