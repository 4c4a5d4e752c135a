#!/usr/bin/env python3
"""Writes byte_pairs/: a small byte-level vocabulary as GPT-2's is made, and what Hugging Face makes of texts with it.

    python3 -m venv VENV && VENV/bin/pip install tokenizers
    VENV/bin/python tests/golden/generate_byte_pairs.py
"""
import json
from pathlib import Path

import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

FOLDER = Path(__file__).resolve().parent / "byte_pairs"
END_OF_TEXT = "<|endoftext|>"

# What the merges are learned from; every line is there as often as its number says.
LEARNED = [
    (9, "The fire burns low, and the old man tells the children how the first fire came to the valley."),
    (7, "It wasn't theirs; they're only keeping it. We've seen that I'm not wrong, you'll see, he'd say."),
    (5, "    for (int i = 0; i < 10; ++i) {\n        sum += values[i];\n    }\n"),
    (5, "In 1969, 2024 and 31415 years there were 100 to 200 of them: 3.14, 2,718, 50 %."),
    (4, "Über die Straße läuft ein kleiner Hund, und älter wird er auch."),
    (4, "Огонь горит в долине, и старик рассказывает детям."),
    (4, "山谷里的火还在燃烧，老人给孩子们讲故事。"),
    (3, "उस घाटी में आग जल रही है।"),
    (3, "😀 👩‍🚀 fire 🔥🔥"),
    (3, "\n\n\t\twhite   space\r\n"),
]

TEXTS = [
    "",
    " ",
    "The fire burns low.",
    "  The  fire\n\n burns   low  ",
    "don't I'll we've they're I'm he'd it's 'tis 'S 'LL 're",
    "''s '' 'd'd'd ' s ''''''''re",
    "a\tb\t\tc\t \td \t",
    "one\ntwo\r\nthree\rfour\n\n\nfive\n \n six\n",
    "trailing spaces   \n",
    "   leading spaces",
    "no-break\u00a0space\u00a0\u00a0two \u00a0three\u00a0 four",
    "thin\u2009space em\u2003space ideographic\u3000\u3000space line\u2028sep para\u2029sep next\u0085line",
    "not white: zero\u200bwidth \u180emongolian \ufeffmark unit\u001fseparator \u001c\u001d",
    "vertical\u000btab form\u000cfeed \u000b\u000c x",
    "numbers 0123456789 12abc34 3.14 -5 1,000,000",
    "other digits ٠١٢٣ ०१२ ௧௨ １２３ 𝟘𝟙𝟚 ²³¹ ½ ⅷ Ⅻ ㊿ 〇 一二三",
    "combining e\u0301 a\u0308\u0304 n\u0303o ก็ไม่ क्षि",
    "composed é ä ñ Å ﬁ ǆ",
    "emoji 😀😃 👍🏽 👩‍👩‍👧‍👦 🇩🇪🇯🇵 ❤️ ☺︎ 🔥fire🔥",
    "山谷里的火还在燃烧。日本語のテキスト、한국어 텍스트!",
    "עברית العربية ‏mixed‎ text",
    "Огонь, ОГОНЬ и огоньки — Über älter Straße",
    "punctuation!? (like) [this] {and} «that» … — “quotes” ‘single’ it’s",
    "symbols + = < > | ~ ^ ` $ € ¥ © ™ № ∑ ∞ → ␀",
    "__init__(self, *args) -> None: # comment\n\treturn f'{x:.2f}'",
    "https://example.org/a?b=c&d=%20#e user@example.org",
    "modifier ʰ ˈ ˆ ª º µ ƻ ǀ",
    "private \ue000\uf8ff unassigned \U000e0001 tag \U000f0000",
    "control \u0000\u0001\u0007\u001b[0m\u007f\u009f end",
    "math 𝒜𝓑 𝐱 old 𐎠𐎡 𓀀 𐐀",
    "x" * 300,
    "ab" * 130 + " " * 40 + "!" * 70,
    "火" * 60,
    "end" + END_OF_TEXT + "begin" + END_OF_TEXT + END_OF_TEXT,
    END_OF_TEXT,
    " " + END_OF_TEXT + " \n" + END_OF_TEXT + "  x",
    "<|endoftext |> <|endoftex <|endoftext|",
    "replacement \ufffd noncharacter \uffff \U0010ffff",
]


def main():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([text for times, text in LEARNED for _ in range(times)], trainer)
    # As in GPT-2's files: the last number, and not a merge.
    tokenizer.add_special_tokens([END_OF_TEXT])
    FOLDER.mkdir(exist_ok=True)
    tokenizer.model.save(str(FOLDER))
    vocabulary = json.loads((FOLDER / "vocab.json").read_text())
    vocabulary[END_OF_TEXT] = tokenizer.token_to_id(END_OF_TEXT)
    (FOLDER / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=True) + "\n")
    rows = []
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text, text
        rows.append(json.dumps({"text": text, "tokens": ids}))
    head = {"tokenizers": tokenizers.__version__, "vocabulary": len(vocabulary)}
    body = ",\n    ".join(rows)
    (FOLDER / "texts.json").write_text(json.dumps(head)[:-1] + ',\n  "texts": [\n    ' + body + "\n  ]\n}\n")


if __name__ == "__main__":
    main()
