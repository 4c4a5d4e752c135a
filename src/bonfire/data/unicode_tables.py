#!/usr/bin/env python3
"""Writes unicode_tables.cpp from Python's Unicode database: python3 unicode_tables.py > unicode_tables.cpp"""
import unicodedata

HANGUL = range(0xAC00, 0xD7A4)  # decomposed by arithmetic
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def category(code_point):
    return unicodedata.category(chr(code_point))


def folded(code_point):
    """Without accents and in lower case, as BERT wants it."""
    bare = [c for c in unicodedata.normalize("NFD", chr(code_point)) if unicodedata.category(c) != "Mn"]
    lower = "".join(c.lower() for c in bare)
    return [ord(c) for c in lower if unicodedata.category(c) != "Mn"]


def ranges(wanted):
    found = []
    for code_point in CODE_POINTS:
        if wanted(category(code_point)):
            if found and found[-1][1] == code_point - 1:
                found[-1][1] = code_point
            else:
                found.append([code_point, code_point])
    return found


def runs(single):
    """(first, count, step, target of the first): equally spaced code points, each moved by the same distance."""
    keys, at = sorted(single), 0
    while at < len(keys):
        best, best_step = 1, 1
        for step in (1, 2):
            end = at
            while (end + 1 < len(keys) and keys[end + 1] == keys[end] + step
                   and single[keys[end + 1]] - keys[end + 1] == single[keys[at]] - keys[at]):
                end += 1
            if end - at + 1 > best:
                best, best_step = end - at + 1, step
        yield keys[at], best, best_step, single[keys[at]]
        at += best


def write(type_name, name, rows):
    print(f"const {type_name} {name}[] = {{")
    line = "   "
    for row in rows:
        text = " " + ",".join(f"0x{value:X}" if value > 9 else str(value) for value in row) + ","
        if len(line) + len(text) > 120:
            print(line)
            line = "   "
        line += text
    print(line + "};")
    print(f"const size_t {name}_count = std::size({name});\n")


single, several = {}, {}
for code_point in CODE_POINTS:
    if code_point in HANGUL or category(code_point) == "Mn":
        continue
    result = folded(code_point)
    if result != [code_point]:
        (single if len(result) == 1 else several)[code_point] = result
assert all(1 < len(result) <= 3 for result in several.values())

print(f"// Unicode {unicodedata.unidata_version}. Written by unicode_tables.py.\n")
print('#include "bonfire/data/unicode_tables.h"\n\n#include <iterator>\n\nnamespace bonfire::data::unicode {\n')
print("// clang-format off")
write("Range", "marks", ranges(lambda name: name == "Mn"))
write("Range", "punctuation", ranges(lambda name: name[0] == "P"))
write("Range", "controls", ranges(lambda name: name in ("Cc", "Cf", "Co")))
write("Range", "spaces", ranges(lambda name: name == "Zs"))
write("Range", "letters", ranges(lambda name: name[0] == "L"))
write("Range", "numbers", ranges(lambda name: name[0] == "N"))
write("Fold", "folds", runs({key: value[0] for key, value in single.items()}))
write("LongFold", "long_folds", ([key] + value + [0] * (3 - len(value)) for key, value in sorted(several.items())))
print("// clang-format on\n\n}  // namespace bonfire::data::unicode")
