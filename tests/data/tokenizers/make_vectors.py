#!/usr/bin/env python3
"""Makes the tokenizers and expected ids of this folder with Hugging Face's `tokenizers` (0.23.3): run it in the repository root.

Each tokenizer is trained on the repository's own text and laid out like those of a model family: glm (one pattern, pairs as
merges, ignore_merges), deepseek (three patterns, strings as merges, an empty Sequence of normalisers), qwen (NFC); steps has the other steps that are supported.
"""
import json
import random
import unicodedata
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

FOLDER = Path("tests/data/tokenizers")
CORPUS = sorted(str(p) for p in [*Path("docs").glob("*.md"), *Path("src/data").glob("*.cpp"), FOLDER / "sample.txt"])
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
MARKS = r"""[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""


def isolated(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def family(normalizer, splits, added, size, use_regex=False):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train(CORPUS, trainer)
    # A word that no merge makes: with ignore_merges it is one token all the same.
    file = json.loads(tokenizer.to_str())
    file["model"]["vocab"]["selection"] = len(file["model"]["vocab"])
    tokenizer = Tokenizer.from_str(json.dumps(file))
    for token in added:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    return json.loads(tokenizer.to_str())


def families():
    yield "glm", family(None, [isolated(WORDS % "{1,3}")], [AddedToken("<|endoftext|>", special=True), AddedToken("<|user|>", special=True), AddedToken("<think>")], 420)
    yield "deepseek", family(normalizers.Sequence([]), [isolated(r"\p{N}{1,3}"), isolated("[一-龥぀-ゟ゠-ヿ]+"), isolated(MARKS)],
                             [AddedToken("<｜end▁of▁sentence｜>", special=True), AddedToken("<｜User｜>", normalized=True)], 420)
    yield "qwen", family(normalizers.NFC(), [isolated(WORDS % "")], [AddedToken("<|endoftext|>", special=True), AddedToken("<|im_end|>", special=True), AddedToken("é!", normalized=True)], 420)
    yield "steps", family(normalizers.Sequence([normalizers.NFKD(), normalizers.NFC()]),
                          [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Split("(", "isolated"), pre_tokenizers.Split(Regex("[=;]+"), "removed")],
                          [AddedToken("<|endoftext|>", special=True), AddedToken("<|endoftext|><|endoftext|>", special=True)], 400, use_regex=True)


def random_text(rng, length):
    """Characters of every kind, those that patterns and normal forms treat specially more often."""
    special = list(" \t\r\n  \u00a0\u2028\u3000\u0085\u180e\u200d\ufeff'ſK’") + ["'s", "'LL", "\r\n", "e\u0301", "o\u0323\u0302", "ｶﾞ", "각", "각", "ﬁ", "👩‍👩‍👧", "<|", "<think>", "12345", "٣٤٥", "Ⅷ½"]
    out = []
    while len(out) < length:
        kind = rng.random()
        if kind < 0.35:
            out.append(rng.choice(special))
        elif kind < 0.6:
            out.append(chr(rng.randrange(32, 127)))
        else:
            c = chr(rng.randrange(0x80, 0x30000 if kind > 0.8 else 0x3100))
            # Characters of Unicode 3.2, on which every library's tables agree.
            if unicodedata.ucd_3_2_0.category(c) not in ("Cs", "Cn"):
                out.append(c)
    return "".join(out)


def texts(added):
    yield from ["", " ", "\n", "  \n\n  a", "It's 12345.67, isn't IT'S\r\n\r\n\tyes", "for (int i = 0; i < 10; ++i) {\n    x[i] += 1;\n}\n", "选择性注意力 读取 最好的 键。日本語テスト",
                "cafe\u0301 café", "\x00\x01\x7f", "a" * 300, " " * 70 + "x", "नमस्ते दुनिया", "مرحبا بالعالم ١٢٣", "🙂🙃 👩‍👩‍👧‍👦!"]
    yield from ["a" + t + t + " b" for t in added]
    yield "x" + "".join(added) + "<|endoftext|" + added[0][:-1]
    rng = random.Random(7)
    for i in range(60):
        yield random_text(rng, 1 + i % 40)


for name, tokenizer in families():
    if name != "glm":
        tokenizer["model"]["merges"] = [" ".join(pair) for pair in tokenizer["model"]["merges"]]
    tokenizer["model"]["ignore_merges"] = name == "glm"
    folder = FOLDER / name
    folder.mkdir(exist_ok=True)
    text = json.dumps(tokenizer, ensure_ascii=False, indent=0)
    (folder / "tokenizer.json").write_text(text + "\n")
    reference = Tokenizer.from_str(text)
    cases = [{"text": t, "ids": reference.encode(t, add_special_tokens=False).ids} for t in texts([t["content"] for t in tokenizer["added_tokens"]])]
    cases += [{"text": "selection of selections", "ids": reference.encode("selection of selections").ids}]
    (folder / "expected.json").write_text("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
