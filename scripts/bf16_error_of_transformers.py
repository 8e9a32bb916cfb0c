#!/usr/bin/env python3
"""How far Hugging Face transformers in bf16 lies from the f64 references of tests/goldens, with the references' selections.

    scripts/bf16_error_of_transformers.py [cpu|cuda]

Relative L2 errors of the logits and of the gradients of the LM loss (the indexer has none), under bf16 autocast. Experts are
chosen by the run itself, while golden-check --device cuda --replay-golden-selections replays the reference's: the two do not
compare like with like where a choice falls otherwise. Needs torch and transformers >= 5.17.
"""
import pathlib
import sys
import tempfile

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

GOLDENS = pathlib.Path(__file__).resolve().parent.parent / "tests" / "goldens"


def replay(case, reference):
    """Makes indexers return the reference's selections, layer by layer."""
    stored = {int(name[5:]): t for name, t in reference.items() if name.startswith("topk.")}
    if case == "deepseek_v4":
        from transformers.models.deepseek_v4 import modeling_deepseek_v4 as m

        m.DeepseekV4Indexer.forward = lambda self, h, q, positions, cache, layer: stored[layer].to(h.device)
        return

    from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as m

    def forward(self, hidden_states, *_, **__):
        index = stored[self.layer_idx].to(hidden_states.device)
        return torch.where(index < 0, index[..., :1], index).to(torch.int32)  # its caller wants a dense list

    m.GlmMoeDsaIndexer.forward = forward


def error(a, b):
    a, b = a.double().cpu(), b.double()
    return ((a - b).norm() / b.norm().clamp_min(1e-30)).item()


def saved_gradients(model):
    """Gradients under the names that files have: saved as if they were the parameters."""
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.zeros_like(p) if p.grad is None else p.grad)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(pathlib.Path(folder) / "model.safetensors")


def main():
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    for case in ("glm51", "deepseek_v4"):
        folder = GOLDENS / case
        reference, gradients = load_file(folder / "reference.safetensors"), load_file(folder / "gradients.safetensors")
        replay(case, reference)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager").to(device).train()
        model.config._experts_implementation = "eager"
        ids = reference["input_ids"].to(device)
        with torch.autocast(device, dtype=torch.bfloat16):  # some modules make f32 of their inputs
            out = model(input_ids=ids, labels=ids, use_cache=False)
        out.loss.backward()
        errors = {n: error(g, gradients[n]) for n, g in saved_gradients(model).items() if "indexer" not in n and g.is_floating_point() and not n.endswith("bias")}
        worst = sorted(errors, key=errors.get)[-3:][::-1]
        print(f"{case}: transformers in bf16: logits {error(out.logits, reference['logits']):.2e}, loss {error(out.loss.reshape(1), reference['loss_lm']):.2e}, "
              f"{len(errors)} gradients compared, worst " + ", ".join(f"{errors[n]:.2e} ({n})" for n in worst))


if __name__ == "__main__":
    main()
