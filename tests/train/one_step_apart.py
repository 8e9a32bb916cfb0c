"""Loads two Hugging Face folders with the safetensors library: the same tensors, apart by at most one optimizer step.

    one_step_apart.py BEFORE AFTER LARGEST_CHANGE
"""
import json
import pathlib
import sys

import numpy
from safetensors import safe_open


def tensors(folder):
    found = {}
    for file in sorted(pathlib.Path(folder).glob("model*.safetensors")):
        with safe_open(file, framework="np") as reader:
            found.update({name: reader.get_tensor(name) for name in reader.keys()})
    return found


before, after = tensors(sys.argv[1]), tensors(sys.argv[2])
assert before.keys() == after.keys(), before.keys() ^ after.keys()
assert json.loads((pathlib.Path(sys.argv[2]) / "config.json").read_text())["dtype"] == "float32"
moved = 0
for name, values in after.items():
    old = before[name]
    assert values.shape == old.shape and numpy.isfinite(values).all(), name
    if not numpy.issubdtype(values.dtype, numpy.floating):
        assert (values == old).all(), name
        continue
    change = numpy.abs(values.astype(numpy.float64) - old).max()
    assert change <= float(sys.argv[3]) * (1 + numpy.abs(old).max()), (name, change)
    moved += change > 0
assert moved > 0.9 * len(after), f"{moved} of {len(after)} tensors moved"
print(f"{len(after)} tensors, {moved} moved")
