#!/usr/bin/env python3
"""Evaluates an exported model with Hugging Face transformers exactly as hyscale-train evaluates: the first sequences of a token
data set, unshuffled, documents packed and cut at the sequence's end; mean cross entropy over labels. Needs torch and
transformers 5.17 or later.

    scripts/evaluate_with_transformers.py MODEL_DIR DATASET_PREFIX --sequence-tokens 1024 --sequences 8 [--device cpu|cuda]
"""
import argparse
import struct

import numpy as np
import torch
from transformers import AutoModelForCausalLM


def documents(prefix):
    index = open(prefix + ".idx", "rb").read()
    dtype = {4: np.int32, 8: np.uint16}[index[17]]
    count, _ = struct.unpack("<QQ", index[18:34])
    lengths = np.frombuffer(index, np.int32, count, 34)
    return np.split(np.fromfile(prefix + ".bin", dtype).astype(np.int64), np.cumsum(lengths)[:-1])


def pieces(docs, sequence_tokens, sequences):
    """(tokens, labels) of every document piece of the packed sequences."""
    place, offset = 0, 0
    for _ in range(sequences):
        room = sequence_tokens
        while room > 0:
            doc = docs[place % len(docs)]
            take = min(room, len(doc) - offset)
            yield doc[offset:offset + take], doc[offset + 1:offset + take + 1]
            room -= take
            offset += take
            if offset == len(doc):
                place, offset = place + 1, 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("dataset")
    parser.add_argument("--sequence-tokens", type=int, required=True)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    a = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(a.model, attn_implementation="eager", dtype=getattr(torch, a.dtype)).to(a.device)
    total, count = 0.0, 0
    with torch.no_grad():
        for tokens, labels in pieces(documents(a.dataset), a.sequence_tokens, a.sequences):
            if len(labels) == 0:
                continue
            logits = model(input_ids=torch.tensor(tokens, device=a.device)[None], use_cache=False).logits[0].float()
            total += torch.nn.functional.cross_entropy(logits[:len(labels)], torch.tensor(labels, device=a.device), reduction="sum").item()
            count += len(labels)
    print(f"transformers loss {total / count:.6f} over {count} labels")


if __name__ == "__main__":
    main()
