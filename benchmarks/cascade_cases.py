"""Questions whose answers can be judged by a rule, and whether a large model got them right. Used by `cascade.py`.

Of public sets the large model's outcome is the recorded one. The embedded model is asked the question alone, without the
examples that some of them were recorded with. `facts`, `sums` and `finds` are made here, for a model of 135 million
weights can do little more; their large model is taken to be always right.
"""

import ast
import itertools
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import router_rows as rows

SEED = 1
GPT4 = "gpt-4-1106-preview"
REPLY = "|model_response"
CAPITALS = (
    "France Paris, Japan Tokyo, Italy Rome, Spain Madrid, Germany Berlin, Egypt Cairo, Kenya Nairobi, Peru Lima,"
    "Chile Santiago, Norway Oslo, Sweden Stockholm, Finland Helsinki, Poland Warsaw, Greece Athens, Turkey Ankara,"
    "Thailand Bangkok, Vietnam Hanoi, Cuba Havana, Canada Ottawa, Australia Canberra, Austria Vienna, Hungary Budapest,"
    "Portugal Lisbon, Ireland Dublin, Iran Tehran, Iraq Baghdad, Nepal Kathmandu, Mongolia Ulaanbaatar, China Beijing,"
    "Russia Moscow, Ukraine Kyiv, Romania Bucharest, Bulgaria Sofia, Serbia Belgrade, Croatia Zagreb, Denmark Copenhagen,"
    "Belgium Brussels, Netherlands Amsterdam, Switzerland Bern, Morocco Rabat, Tunisia Tunis, Ghana Accra, Senegal Dakar,"
    "Ethiopia Addis, Uganda Kampala, Zambia Lusaka, Angola Luanda, Colombia Bogota, Venezuela Caracas, Ecuador Quito,"
    "Uruguay Montevideo, Jordan Amman, Lebanon Beirut, Syria Damascus, Qatar Doha, Georgia Tbilisi, Armenia Yerevan,"
    "Latvia Riga, Estonia Tallinn, Iceland Reykjavik, Jamaica Kingston, Philippines Manila, Malaysia Kuala"
)
NAMES = ("Ada", "Bruno", "Chen", "Dalia", "Emil", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kira", "Luca")
THINGS = ("lamps", "chairs", "books", "maps", "keys", "bags", "cups", "ropes", "coats", "bells")
Judge = Callable[[str, str], bool]  # of an answer and what is right


@dataclass(frozen=True, slots=True)
class Question:
    prompt: str
    right: str
    large: float  # the large model's score, 0 or 1


@dataclass(frozen=True, slots=True)
class Case:
    """`chance`: the score of guessing. `most`: questions; `quick`: of them, in a short run."""

    name: str
    questions: list[Question]
    judge: Judge
    chance: float
    large: str
    most: int
    quick: int
    max_tokens: int = 24

    def some(self, *, quick: bool) -> list[Question]:
        count = min(self.quick if quick else self.most, len(self.questions))
        return random.Random(SEED).sample(self.questions, count)


def cases() -> Iterator[Case]:
    if rows.DATA.is_dir():
        yield Case("gsm8k", list(gsm8k()), last_number, 0.0, "Llama-3 70B", 60, 2, max_tokens=160)
        yield Case("arc", list(choices("arc_challenge")), letter, 0.25, "GPT-4", 400, 6, max_tokens=8)
        yield Case("winogrande", list(choices("winograde")), letter, 0.5, "GPT-4", 200, 6, max_tokens=8)
    ideal = "always right by assumption"
    yield Case("facts", list(facts()), contains, 0.0, ideal, 400, 12)
    yield Case("sums", list(sums()), last_number, 0.0, ideal, 400, 12)
    yield Case("finds", list(finds()), contains, 0.25, ideal, 400, 6)


def letter(answer: str, right: str) -> bool:
    found = re.search(r"\b[A-E]\b", answer)
    return found is not None and found.group() == right


def last_number(answer: str, right: str) -> bool:
    found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", answer)
    return bool(found) and abs(float(found[-1].replace(",", "")) - float(right)) < 1e-6


def contains(answer: str, right: str) -> bool:
    return right.lower() in answer.lower()


def gsm8k() -> Iterator[Question]:
    """As zeroeval has them, asked plainly; the large model had to answer in JSON."""
    prompts, scores = rows.zero_scores("gsm")
    right = rows.zero_answers("gsm")
    for name, known in scores.items():
        number = right[name].removeprefix("#").strip().replace(",", "")
        if rows.LLAMA[1] in known and re.fullmatch(r"-?\d+(\.\d+)?", number):
            asked = prompts[name].partition("## Question:")[2].partition("## Instruction")[0].strip()
            yield Question(asked, number, known[rows.LLAMA[1]])


def choices(name: str) -> Iterator[Question]:
    """RouterBench keeps no solutions: right is what the models answered that were counted as right."""
    for row in rows.table(f"routerbench_subset/routerbench_zs__{name}_train.csv.gz"):
        replies = [column for column in row if column.endswith(REPLY)]
        good = {
            ast.literal_eval(row[column])[0].strip()[:1]
            for column in replies
            if row[column.removesuffix(REPLY)] == "1.0"
        } & set("ABCDE")
        if len(good) == 1 and row[GPT4] in ("0.0", "1.0"):
            asked = ast.literal_eval(row["prompt"])[0].rpartition("\n\n")[2]
            yield Question(asked, good.pop(), float(row[GPT4]))


def facts() -> Iterator[Question]:
    """Both ways round."""
    for pair in CAPITALS.split(","):
        country, capital = pair.split()
        yield Question(f"What is the capital of {country}? Answer with its name only.", capital, 1.0)
        yield Question(f"Of which country is {capital} the capital? Answer with its name only.", country, 1.0)


def sums() -> Iterator[Question]:
    """Of one to three figures, so that some are easy."""
    rng = random.Random(SEED)
    for size in itertools.islice(itertools.cycle((9, 20, 99, 400)), 400):
        a, b = rng.randint(1, size), rng.randint(1, size)
        yield Question(f"What is {a} + {b}? Answer with the number only.", str(a + b), 1.0)


def finds() -> Iterator[Question]:
    """Which of four numbers in a text belongs to a name."""
    rng = random.Random(SEED)
    for _ in range(400):
        who, counts, what = rng.sample(NAMES, 4), rng.sample(range(11, 99), 4), rng.choice(THINGS)
        text = " ".join(f"{name} has {count} {what}." for name, count in zip(who, counts, strict=True))
        at = rng.randrange(4)
        yield Question(
            f"{text}\nHow many {what} does {who[at]} have? Answer with the number only.", str(counts[at]), 1.0
        )
