#!/usr/bin/env python3
"""What bf16 costs Hugging Face transformers on the models of tests/goldens: the yardstick for golden-check --round-weights.

    scripts/bf16_error_of_transformers.py [cpu|cuda]

Both runs have the weights that bf16 keeps. The first computes in f64 and every choice it makes (keys, entries, experts: each
torch.topk) is replayed in the second, which computes in bf16 under autocast. Prints relative L2 errors of the logits and of the
gradients of the LM loss: all of them as one vector, and the worst. The indexer has none of this loss. Needs torch and
transformers >= 5.17.
"""
import pathlib
import sys
import tempfile

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

GOLDENS = pathlib.Path(__file__).resolve().parent.parent / "tests" / "goldens"
CASES = ("glm51", "glm51_odd_length", "glm52_shared", "deepseek_v4", "qwen_qsa", "qwen_qsa_ple")


class Choices:
    """Records the indices of each top-k in order, or returns those recorded."""

    def __enter__(self):
        self.recorded, self.replaying, self.originals = [], None, (torch.topk, torch.Tensor.topk)

        def topk(x, k, dim=-1, **kwargs):
            found = self.originals[0](x, k, dim, **kwargs)
            if self.replaying is None:
                self.recorded.append(found.indices)
                return found
            indices = next(self.replaying)
            assert indices.shape == found.indices.shape, (indices.shape, found.indices.shape)
            return torch.return_types.topk((x.gather(dim, indices), indices))

        torch.topk = torch.Tensor.topk = topk
        return self

    def __exit__(self, *_):
        torch.topk, torch.Tensor.topk = self.originals


def error(a, b):
    a, b = a.double().cpu(), b.double().cpu()
    return ((a - b).norm() / b.norm().clamp_min(1e-30)).item()


def gradients(model):
    """Gradients under the names that files have: saved as if they were the parameters."""
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.zeros_like(p) if p.grad is None else p.grad)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        saved = load_file(pathlib.Path(folder) / "model.safetensors")
    return {n: g for n, g in saved.items() if "indexer" not in n and g.is_floating_point() and not n.endswith("bias")}


def run(folder, ids, device, dtype):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager").to(device=device, dtype=dtype).train()
    model.config._experts_implementation = "eager"
    with torch.autocast(device, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):  # some modules make f32 of their inputs
        out = model(input_ids=ids, labels=ids, use_cache=False)
    out.loss.backward()
    return out.logits.detach(), gradients(model)


def main():
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    for case in CASES:
        folder = GOLDENS / case
        ids = load_file(folder / "reference.safetensors")["input_ids"].to(device)
        with Choices() as choices:
            logits, exact = run(folder, ids, device, torch.float64)
            choices.replaying = iter(choices.recorded)
            rounded_logits, rounded = run(folder, ids, device, torch.bfloat16)
        errors = {n: error(rounded[n], exact[n]) for n in exact}
        names = sorted(errors, key=errors.get, reverse=True)
        together = error(torch.cat([rounded[n].double().flatten() for n in names]), torch.cat([exact[n].double().flatten() for n in names]))
        print(f"{case}: transformers in bf16: logits {error(rounded_logits, logits):.2e}, {len(names)} gradients, {together:.2e} together, worst "
              + ", ".join(f"{errors[n]:.2e} ({n})" for n in names[:3]), flush=True)


if __name__ == "__main__":
    main()
