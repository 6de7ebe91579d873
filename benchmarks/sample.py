"""Write the sample that ships in ``smelt_match/train/sample``: python benchmarks/sample.py DOCUTILS_SDIST_FOLDER

Five stand-in categories, at most 2 MB. Copied text is public domain (docutils, tz database) or under the PSF licence
(CPython); the rest is made here from templates and random numbers, and says so in its source's name and provenance.
"""

# ruff: noqa: E501  (templates are lines of text)
from __future__ import annotations

import json
import platform
import random
import re
import sys
import sysconfig
import unicodedata
from collections.abc import Callable, Iterator
from fractions import Fraction
from math import gcd, isqrt
from pathlib import Path

from smelt_match.train.corpus.builtin import PROVENANCE, SAMPLE, language_topics

PYTHON = f"CPython {platform.python_version()}"
OWN = "benchmarks/sample.py (synthetic)"
NAMES = [
    "Alder",
    "Birch",
    "Cedar",
    "Dogwood",
    "Elm",
    "Fir",
    "Hazel",
    "Juniper",
    "Larch",
    "Maple",
    "Oak",
    "Pine",
    "Rowan",
    "Spruce",
    "Sycamore",
    "Willow",
]
KINDS = [
    "Foods",
    "Instruments",
    "Logistics",
    "Mills",
    "Optics",
    "Paper",
    "Power",
    "Rail",
    "Semiconductors",
    "Shipping",
    "Software",
    "Steel",
    "Textiles",
]
PEOPLE = [
    "Ada",
    "Bela",
    "Chen",
    "Dara",
    "Emil",
    "Farah",
    "Goran",
    "Hana",
    "Ines",
    "Jonas",
    "Kofi",
    "Lena",
    "Mateo",
    "Nadia",
    "Omar",
    "Priya",
    "Quinn",
    "Rosa",
    "Sven",
    "Tara",
]
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]


def stdlib_modules(_: random.Random) -> Iterator[tuple[str, str]]:
    """Small modules that carry no notice of another owner."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted([*root.glob("*.py"), *root.glob("[a-z]*/*.py")]):
        inside = path.relative_to(root)
        if {"site-packages", "test", "pydoc_data", "lib2to3", "idlelib", "encodings"} & set(inside.parts):
            continue
        if any(part.startswith("config-") for part in inside.parts):  # written when Python was built, with its paths
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if 500 <= len(text) <= 5500 and not re.search(r"copyright|licen[sc]e|\(c\)", text, re.IGNORECASE):
            yield text, f"Lib/{inside.as_posix()}"


def functions(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Small Python functions with a docstring and a check."""
    nouns = ["items", "rows", "scores", "weights", "prices", "lengths", "counts", "samples", "levels", "marks"]
    while True:
        noun, k, n = rng.choice(nouns), rng.randint(2, 97), rng.randint(3, 9)
        values = [rng.randint(-40, 120) for _ in range(n)]
        kind = rng.randrange(6)
        if kind == 0:
            name, doc, body = (
                f"{noun}_above_{k}",
                f"The {noun} greater than {k}, in order.",
                f"[value for value in {noun} if value > {k}]",
            )
            result: object = [value for value in values if value > k]
        elif kind == 1:
            name, doc, body = (
                f"scaled_{noun}_by_{k}",
                f"Each of the {noun} times {k}.",
                f"[{k} * value for value in {noun}]",
            )
            result = [k * value for value in values]
        elif kind == 2:
            name, doc, body = f"total_of_{noun}_modulo_{k}", f"The sum of the {noun}, modulo {k}.", f"sum({noun}) % {k}"
            result = sum(values) % k
        elif kind == 3:
            name, doc, body = (
                f"spread_of_{noun}",
                f"The largest of the {noun} minus the smallest.",
                f"max({noun}) - min({noun})",
            )
            result = max(values) - min(values)
        elif kind == 4:
            name, doc, body = (
                f"running_{noun}",
                f"Partial sums of the {noun}, from {k}.",
                f"[{k} + sum({noun}[: i + 1]) for i in range(len({noun}))]",
            )
            result = [k + sum(values[: i + 1]) for i in range(n)]
        else:
            name, doc, body = (
                f"rank_{noun}_near_{k}",
                f"The {noun} by their distance from {k}, the nearest first.",
                f"sorted({noun}, key=lambda value: (abs(value - {k}), value))",
            )
            result = sorted(values, key=lambda value: (abs(value - k), value))
        yield (
            (
                f'def {name}({noun}: list[int]) -> object:\n    """{doc}"""\n    return {body}\n\n\n'
                f"def test_{name}() -> None:\n    {noun} = {values}\n    assert {name}({noun}) == {result}\n"
            ),
            OWN,
        )


def arithmetic(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Sums worked out step by step."""
    while True:
        parts = []
        for _ in range(rng.randint(1, 3)):
            a, b, kind = rng.randint(12, 9999), rng.randint(12, 999), rng.randrange(4)
            if kind == 0:
                digits = [(int(d) * 10**i, i) for i, d in enumerate(reversed(str(b))) if d != "0"]
                lines = [f"{a} × {d} = {a * d}" for d, _ in digits]
                parts.append(
                    f"Multiply {a} by {b}.\n"
                    + "\n".join(lines)
                    + f"\nThe sum of these is {a * b}, so {a} × {b} = {a * b}."
                )
            elif kind == 1:
                q, r = divmod(a * 7, b)
                parts.append(
                    f"Divide {a * 7} by {b}.\n{b} goes into {a * 7} {q} times, since {b} × {q} = {b * q}.\nWhat is left is {a * 7} − {b * q} = {r}.\nSo {a * 7} = {b} × {q} + {r}."
                )
            elif kind == 2:
                x, y, steps = a, b, []
                while y:
                    steps.append(f"{x} = {y} × {x // y} + {x % y}")
                    x, y = y, x % y
                parts.append(
                    f"The greatest common divisor of {a} and {b}, by Euclid's algorithm:\n"
                    + "\n".join(steps)
                    + f"\nThe last remainder that is not zero is {x}."
                )
            else:
                p, q = Fraction(a % 97 + 1, b % 41 + 2), Fraction(b % 53 + 1, a % 37 + 2)
                parts.append(
                    f"Add the fractions {p} and {q}.\nTheir common denominator is {p.denominator * q.denominator // gcd(p.denominator, q.denominator)}.\nThe sum is {p + q}, and the difference is {p - q}.\nThe product is {p * q}, and the quotient is {p / q}."
                )
        yield "\n\n".join(parts) + "\n", OWN


def algebra(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Equations, series and derivatives worked out."""
    while True:
        kind, a, b, x, y = (
            rng.randrange(4),
            rng.randint(2, 30),
            rng.randint(-60, 60) or 7,
            rng.randint(-25, 25),
            rng.randint(-25, 25),
        )
        if kind == 0:
            text = f"Solve {a}x + {b} = {a * x + b}.\nSubtract {b} on both sides: {a}x = {a * x}.\nDivide by {a}: x = {x}.\nCheck: {a} · {x} + {b} = {a * x + b}."
        elif kind == 1:
            text = f"Find the roots of x² + {-(x + y)}x + {x * y} = 0.\nTwo numbers are sought whose sum is {x + y} and whose product is {x * y}.\nThe discriminant is ({x + y})² − 4 · {x * y} = {(x - y) ** 2}, whose square root is {abs(x - y)}.\nSo the roots are {min(x, y)} and {max(x, y)}, and the polynomial is (x − {x})(x − {y})."
        elif kind == 2:
            n = rng.randint(5, 90)
            text = f"An arithmetic series begins with {b} and grows by {a} for {n} terms.\nThe last term is {b} + {n - 1} · {a} = {b + (n - 1) * a}.\nThe mean of the first and the last term is {Fraction(2 * b + (n - 1) * a, 2)}.\nTimes {n}, the sum is {n * (2 * b + (n - 1) * a) // 2 if n * (2 * b + (n - 1) * a) % 2 == 0 else Fraction(n * (2 * b + (n - 1) * a), 2)}."
        else:
            c = [rng.randint(-12, 12) for _ in range(4)]
            value = sum(k * x**i for i, k in enumerate(c))
            slope = sum(i * k * x ** (i - 1) for i, k in enumerate(c) if i)
            text = f"Let f(x) = {c[3]}x³ + {c[2]}x² + {c[1]}x + {c[0]}.\nIts derivative is f'(x) = {3 * c[3]}x² + {2 * c[2]}x + {c[1]}.\nAt x = {x}: f({x}) = {value} and f'({x}) = {slope}.\nThe tangent there is y = {slope}(x − {x}) + {value}, which meets the y axis at {value - slope * x}."
        yield text + "\n", OWN


def numbers(rng: random.Random) -> Iterator[tuple[str, str]]:
    """What can be said of one whole number."""
    for n in rng.sample(range(100, 40_000), 4000):
        rest, factors = n, []
        for p in range(2, isqrt(n) + 1):
            while rest % p == 0:
                factors.append(p)
                rest //= p
        factors += [rest] * (rest > 1)
        divisors = [d for d in range(1, n + 1) if n % d == 0]
        yield (
            (
                f"The number {n} is {'prime' if len(factors) == 1 else 'not prime'}. Its prime factors are {' · '.join(map(str, factors))}. "
                f"It has {len(divisors)} divisors: {', '.join(map(str, divisors))}. Their sum is {sum(divisors)}. In binary it is {n:b}, in octal "
                f"{n:o}, in hexadecimal {n:x}. Its square is {n * n} and its cube is {n**3}. The square root lies between {isqrt(n)} and {isqrt(n) + 1}.\n"
            ),
            OWN,
        )


def topics(_: random.Random) -> Iterator[tuple[str, str]]:
    """Chapters of the language reference, at most 5,000 characters each."""
    for document in language_topics():
        if 300 <= len(document.text) <= 5000:
            yield document.text, "Lib/pydoc_data/topics.py"


def zones(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Time zones of countries, from the tables of the tz database."""
    import tzdata

    root = Path(tzdata.__file__).parent / "zoneinfo"
    lines = {name: [line.split("\t") for line in (root / name).read_text(encoding="utf-8").splitlines() if line[:1] not in "#"]
             for name in ("iso3166.tab", "zone.tab")}  # fmt: skip
    for code, country in lines["iso3166.tab"]:
        rows = [row for row in lines["zone.tab"] if row[0] == code]
        told = []
        for _, place, zone, *comment in rows:
            area, _, city = zone.partition("/")
            where = re.fullmatch(r"([+-])(\d{2,})(\d\d)([+-])(\d{3})(\d\d)", place) or re.fullmatch(
                r"([+-])(\d\d)(\d\d)\d\d([+-])(\d{3})(\d\d)\d\d", place
            )
            assert where
            ns, lat, latm, ew, lon, lonm = where.groups()
            told.append(rng.choice([
                f"{city.replace('_', ' ')} ({area}) keeps the zone {zone}; it lies at {int(lat)}°{latm}′ {'N' if ns == '+' else 'S'}, {int(lon)}°{lonm}′ {'E' if ew == '+' else 'W'}.",
                f"At {int(lat)}°{latm}′ {'north' if ns == '+' else 'south'} and {int(lon)}°{lonm}′ {'east' if ew == '+' else 'west'} is {city.replace('_', ' ')}, whose clocks follow {zone}.",
            ]) + (f" It stands for: {comment[0]}." if comment else ""))  # fmt: skip
        if told:
            yield (
                f"{country} has the two-letter code {code}. The tz database names {len(rows)} of its places.\n"
                + "\n".join(told)
                + "\n",
                "iso3166.tab, zone.tab",
            )


def characters(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Runs of Unicode characters, described."""
    kinds = {
        "Lu": "an upper-case letter",
        "Ll": "a lower-case letter",
        "Lo": "a letter",
        "Sm": "a mathematical sign",
        "So": "a symbol",
        "Po": "punctuation",
        "Nd": "a decimal digit",
        "No": "a number",
        "Sc": "a currency sign",
    }
    starts = [
        start
        for start in range(0xA0, 0x3000, 8)
        if sum(unicodedata.category(chr(c)) in kinds for c in range(start, start + 8)) >= 6
    ]
    for start in rng.sample(starts, len(starts)):
        told = []
        for code in range(start, start + 8):
            char = chr(code)
            kind = kinds.get(unicodedata.category(char))
            if kind:
                extra = (
                    f" Its numeric value is {unicodedata.numeric(char):g}."
                    if unicodedata.category(char) in ("Nd", "No")
                    else ""
                )
                extra += f" In upper case it is {char.upper()}." if char.upper() != char else ""
                told.append(f"{char} (U+{code:04X}) is {unicodedata.name(char).lower()}, {kind}.{extra}")
        yield "\n".join(told) + "\n", "unicodedata"


def _company(rng: random.Random) -> str:
    return f"{rng.choice(NAMES)} {rng.choice(KINDS)}"


def reports(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Quarterly results of companies that do not exist."""
    while True:
        name, year, quarter = _company(rng), rng.randint(1998, 2024), rng.randint(1, 4)
        revenue, before = rng.randint(2_000, 90_000) / 10, rng.randint(2_000, 90_000) / 10
        cost = round(revenue * rng.uniform(0.4, 0.9), 1)
        tax = round((revenue - cost) * rng.uniform(0.15, 0.3), 1)
        shares = rng.randint(40, 900)
        verb = "rose" if revenue > before else "fell"
        opening = rng.choice([f"{name} reports results for the {('first', 'second', 'third', 'fourth')[quarter - 1]} quarter of {year}.",
                              f"Results of {name}, Q{quarter} {year}.", f"{name} today announced its figures for Q{quarter} of fiscal {year}."])  # fmt: skip
        middle = [f"Revenue {verb} to {revenue:,.1f} million from {before:,.1f} million a year before, a change of {(revenue / before - 1) * 100:+.1f} %.",
                  f"Cost of sales was {cost:,.1f} million, which leaves a gross profit of {revenue - cost:,.1f} million and a gross margin of {(1 - cost / revenue) * 100:.1f} %.",
                  f"After taxes of {tax:,.1f} million, net income was {revenue - cost - tax:,.1f} million, or {(revenue - cost - tax) / shares:.2f} a share on {shares} million shares.",
                  f"Cash at the end of the quarter was {rng.randint(50, 4000):,} million, and debt stood at {rng.randint(0, 6000):,} million.",
                  f"The board declared a dividend of {rng.randint(1, 90) / 100:.2f} a share, payable on {rng.randint(1, 28)} {rng.choice(MONTHS)}.",
                  f"Orders in hand were {rng.randint(100, 9000):,} million, {rng.choice(['more', 'less'])} than at the end of {year - 1}.",
                  f"{rng.choice(PEOPLE)} {rng.choice(NAMES)}, who leads the company, pointed to {rng.choice(['demand abroad', 'lower prices of energy', 'a new plant', 'fewer returns', 'higher wages', 'a weak currency', 'two large contracts'])}."]  # fmt: skip
        rng.shuffle(middle)
        yield opening + " " + " ".join(middle[: rng.randint(3, 7)]) + "\n", OWN


def ledgers(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Accounts that add up."""
    uses = [
        "rent",
        "wages",
        "paper",
        "fuel",
        "insurance",
        "repairs",
        "freight",
        "interest",
        "software",
        "training",
        "postage",
        "electricity",
        "water",
        "taxes",
        "fees",
    ]
    while True:
        year, balance = rng.randint(1990, 2024), rng.randint(1_000, 90_000)
        lines = [
            f"Account of {_company(rng)}, {rng.choice(MONTHS)} {year}",
            "day | entry | amount | balance",
            f"1 | opening balance | | {balance:,}",
        ]
        for day in sorted(rng.sample(range(2, 29), rng.randint(5, 12))):
            amount = rng.randint(10, 9_000) * rng.choice([1, -1, -1])
            balance += amount
            lines.append(
                f"{day} | {rng.choice(uses) if amount < 0 else 'sale to ' + _company(rng)} | {amount:+,} | {balance:,}"
            )
        yield "\n".join(lines) + "\n", OWN


def loans(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Interest worked out year by year."""
    while True:
        sum_, rate, years = rng.randint(5, 900) * 1000, rng.randint(10, 95) / 10, rng.randint(3, 10)
        who, lines, value = rng.choice(PEOPLE), [], float(sum_)
        for year in range(1, years + 1):
            interest = round(value * rate / 100, 2)
            value = round(value + interest, 2)
            lines.append(f"Year {year}: interest of {interest:,.2f} makes {value:,.2f}.")
        start = rng.choice(
            [
                f"{who} lends {sum_:,} at {rate} % a year for {years} years, compounded yearly.",
                f"A deposit of {sum_:,} bears {rate} % a year; {who} leaves it for {years} years.",
            ]
        )
        yield (
            f"{start}\n"
            + "\n".join(lines)
            + f"\nIn all, {value - sum_:,.2f} was earned, {(value / sum_ - 1) * 100:.2f} % of the sum.\n",
            OWN,
        )


def pages(_: random.Random) -> Iterator[tuple[str, str]]:
    """Sections of docutils' web pages that are declared to be in the public domain."""
    root = Path(sys.argv[1])
    for path in sorted([*root.glob("docs/**/*.rst"), root / "FAQ.rst"]):
        text = path.read_text(encoding="utf-8", errors="replace")
        if not re.search(r"placed in\s+the\s+public\s+domain", text):
            continue
        for section in re.split(r"\n(?=[^\n]+\n(?:={5,}|-{5,})\n\n)", text):
            body = section.strip() + "\n"
            if 500 <= len(body) <= 4000:
                yield body, path.relative_to(root).as_posix()


def threads(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Questions and answers of a forum that does not exist."""
    things = [
        "kettle",
        "bicycle chain",
        "tomato seedlings",
        "old radio",
        "wooden door",
        "sourdough",
        "garden hose",
        "printer",
        "camera lens",
        "wool jumper",
        "guitar string",
        "tent",
        "fountain pen",
        "piano stool",
        "rain gauge",
    ]
    faults = [
        "makes a noise",
        "does not dry",
        "smells odd",
        "has gone stiff",
        "leaks a little",
        "turned grey",
        "will not stay shut",
        "stopped after a week",
        "is too short",
        "bends to the left",
    ]
    tips = [
        "Take it apart and look at the smallest piece first",
        "Warm it slowly",
        "Leave it in the shade for a day",
        "Use less water than the label says",
        "A drop of oil does it",
        "Turn it over each morning",
        "Measure twice before you cut",
        "Ask the shop for the older part",
        "Vinegar, and patience",
        "Do nothing for a week and look again",
    ]
    while True:
        thing, fault = rng.choice(things), rng.choice(faults)
        people = rng.sample(PEOPLE, 4)
        hour = rng.randint(6, 20)
        lines = [
            f"Topic: my {thing} {fault}",
            f"{people[0]} ({hour}:{rng.randint(10, 59)}): I bought this {thing} {rng.randint(2, 30)} {rng.choice(['days', 'weeks', 'months'])} ago for {rng.randint(3, 400)}, and now it {fault}. {rng.choice(['Any ideas?', 'Has anybody seen this?', 'What did I do wrong?', 'Is it worth mending?'])}",
        ]
        for index in range(rng.randint(2, 5)):
            who = people[1 + index % 3]
            lines.append(
                f"{who} ({hour + 1 + index // 2}:{rng.randint(10, 59)}): {rng.choice(tips)}. {rng.choice(['Mine', 'My sister’s', 'The one at work', 'A friend’s'])} {rng.choice(faults)} too, and that took {rng.randint(2, 50)} {rng.choice(['minutes', 'hours', 'days'])}. {rng.randint(0, 40)} people liked this."
            )
        lines.append(
            f"{people[0]}: {rng.choice(['Thank you, that worked.', 'It is better, but not well.', 'No change so far.', 'I gave it away.'])}"
        )
        yield "\n".join(lines) + "\n", OWN


Made = Callable[[random.Random], Iterator[tuple[str, str]]]
PUBLIC, PSF, UNICODE, OURS = "public domain", "PSF-2.0", "Unicode-3.0", "Apache-2.0"
SOURCES: list[tuple[str, str, int, str, str, Made]] = [
    ("Code", "stdlib-modules", 330_000, PYTHON, PSF, stdlib_modules),
    ("Code", "synthetic-functions", 60_000, OWN, OURS, functions),
    ("Math", "synthetic-arithmetic", 140_000, OWN, OURS, arithmetic),
    ("Math", "synthetic-algebra", 100_000, OWN, OURS, algebra),
    ("Math", "synthetic-numbers", 70_000, OWN, OURS, numbers),
    ("Knowledge", "python-reference-sample", 150_000, PYTHON, PSF, topics),
    ("Knowledge", "time-zones", 70_000, "tz database, through tzdata", PUBLIC, zones),
    ("Knowledge", "characters", 160_000, "Unicode Character Database, through unicodedata", UNICODE, characters),
    ("Finance", "synthetic-reports", 150_000, OWN, OURS, reports),
    ("Finance", "synthetic-ledgers", 110_000, OWN, OURS, ledgers),
    ("Finance", "synthetic-loans", 80_000, OWN, OURS, loans),
    ("Web", "docutils-pages", 250_000, "docutils 0.23", PUBLIC, pages),
    ("Web", "synthetic-threads", 90_000, OWN, OURS, threads),
]  # fmt: skip


def main() -> None:
    """Write a file a category, and the provenance of every item."""
    from smelt_match.train.corpus.document import Document
    from smelt_match.train.corpus.near import NearIndex

    SAMPLE.mkdir(exist_ok=True)
    lines: dict[str, list[str]] = {}
    items: dict[tuple[str, str, str, str, str], int] = {}
    for category, source, limit, origin, licence, made in SOURCES:
        near, size = NearIndex(0.7), 0
        for text, item in made(random.Random(source)):
            document = Document(source, category, text)
            if near.has_near(document):
                continue
            near.add(document)
            size += len(text.encode())
            if size > limit:
                break
            lines.setdefault(category, []).append(
                json.dumps({"text": text, "source": source, "category": category}, ensure_ascii=False)
            )
            key = (source, category, item if item != OWN else source, origin, licence)
            items[key] = items.get(key, 0) + 1
        print(f"{category:10} {source:24} {min(size, limit):,} bytes", file=sys.stderr)
    for category, found in lines.items():
        (SAMPLE / f"{category.lower()}.jsonl").write_text("\n".join(found) + "\n", encoding="utf-8")
    told = [
        {"source": s, "category": c, "item": i, "origin": o, "licence": l, "documents": n}
        for (s, c, i, o, l), n in items.items()
    ]
    notices = {licence: NOTICES[licence] for licence in sorted({entry["licence"] for entry in told})}
    (SAMPLE / PROVENANCE).write_text(
        json.dumps({"licences": notices, "items": told}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


NOTICES = {
    PUBLIC: "Declared by its authors to be in the public domain.",
    OURS: "Made by the project itself; under its own licence.",
    PSF: "In LICENSE.python beside this file. Changes: none; each module and chapter is one document.",
    UNICODE: "In LICENSE.unicode beside this file. Changes: names and properties are told in sentences.",
}

if __name__ == "__main__":
    main()
