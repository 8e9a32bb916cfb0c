#!/usr/bin/env python3
"""Times one training step (forward and backward) of a small GLM at some length: transformers' eager implementation on the
CPU against HyScale's bench_step, with the same number of threads. Needs torch and transformers.

    scripts/compare_step_speed.py [--tokens 4096] [--threads 2] [--build build]
"""
import argparse
import json
import os
import subprocess
import time


def transformers_seconds(config_path, tokens, repeats):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(config_path)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    ids = torch.randint(0, config.vocab_size, (1, tokens))
    times = []
    for _ in range(repeats + 1):
        model.zero_grad()
        start = time.perf_counter()
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def hyscale_seconds(build, config_path, tokens, threads):
    env = dict(os.environ, OMP_NUM_THREADS=str(threads), MODEL_CONFIG=config_path)
    out = subprocess.run([f"{build}/tests/bench_step", f"--benchmark_filter=step/{tokens}/0/", "--benchmark_format=json"],
                         env=env, check=True, capture_output=True, text=True).stdout
    return json.loads(out)["benchmarks"][0]["real_time"] / 1e3


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--build", default="build")
    parser.add_argument("--config", default="configs/models/glm-tiny.json")
    a = parser.parse_args()
    ours = hyscale_seconds(a.build, a.config, a.tokens, a.threads)
    import torch
    torch.set_num_threads(a.threads)
    theirs = transformers_seconds(a.config, a.tokens, a.repeats)
    print(f"{a.tokens} tokens, {a.threads} threads: transformers eager {theirs:.3f} s, HyScale {ours:.3f} s, ratio {theirs / ours:.2f}")


if __name__ == "__main__":
    main()
