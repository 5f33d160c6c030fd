"""What kind of answer a prompt asks for, by its words: English and Chinese. A prompt can be of several kinds. Pure."""

from enum import StrEnum
from itertools import pairwise

WINDOW_CHARS = 400  # of the head, and as many of the tail: instructions stand at either end of a long prompt
PAIRED_WORDS = 32  # at either end
_BLANK = bytes(
    code + 32 if 0x41 <= code < 0x5B else code if chr(code).isalnum() or code == 0x27 or code > 0x7F else 32
    for code in range(256)
)


class PromptType(StrEnum):
    """In the order of precedence, for where one has to be named."""

    TRANSLATION = "translation"
    SUMMARY = "summary"
    REWRITE = "rewrite"
    EXTRACTION = "extraction"
    CLASSIFICATION = "classification"
    CODE = "code"
    MATHS = "maths"
    CREATIVE = "creative"
    ROLEPLAY = "roleplay"
    LIST = "list"
    REASONING = "reasoning"
    EXPLAIN = "explain"
    FACT = "fact"
    CHAT = "chat"


TYPES = tuple(PromptType)
_ENGLISH: dict[PromptType, str] = {
    PromptType.TRANSLATION: "translate translation translating translated",
    PromptType.SUMMARY: "summarize summarise summary summarizing summarising tldr tl condense abstract",
    PromptType.REWRITE: "rewrite rephrase paraphrase proofread edit reword revise improve polish correct fix shorten",
    PromptType.EXTRACTION: "extract identify parse retrieve entities keywords fields",
    PromptType.CLASSIFICATION: "classify categorize categorise label sentiment category true false choose select "
    "option options following",
    PromptType.CODE: "code function python javascript java sql typescript html css bash script program implement "
    "class regex bug debug compile api query component algorithm def return error exception",
    PromptType.MATHS: "calculate solve equation integral derivative probability sum total many much percent cost "
    "prove algebra geometry triangle compute",
    PromptType.CREATIVE: "write story poem song lyrics essay blog script novel dialogue haiku joke imagine fiction "
    "creative speech email letter article",
    PromptType.ROLEPLAY: "act pretend roleplay character you're persona",
    PromptType.LIST: "list lists ideas examples suggest suggestions bullet names recommend tips ways brainstorm steps",
    PromptType.REASONING: "why reason reasoning analyze analyse compare evaluate step deduce logic assess pros cons "
    "think argue",
    PromptType.EXPLAIN: "explain describe how difference elaborate detail overview discuss outline",
    PromptType.FACT: "what who when where which whose capital year name is are does did",
    PromptType.CHAT: "hi hello hey thanks thank ok okay yes continue please sure bye great",
}
_CHINESE: dict[PromptType, tuple[str, ...]] = {
    PromptType.TRANSLATION: ("翻译", "译成", "译为"),
    PromptType.SUMMARY: ("总结", "概括", "摘要", "归纳"),
    PromptType.REWRITE: ("改写", "润色", "改成", "纠正", "修改"),
    PromptType.EXTRACTION: ("提取", "抽取", "找出", "识别"),
    PromptType.CLASSIFICATION: ("分类", "判断", "属于", "选择", "情感", "下列"),
    PromptType.CODE: ("代码", "函数", "编程", "程序", "算法", "脚本"),
    PromptType.MATHS: ("计算", "求解", "方程", "多少", "概率", "几个", "证明"),
    PromptType.CREATIVE: ("写一", "故事", "诗", "作文", "小说", "歌词", "文案", "撰写", "创作"),
    PromptType.ROLEPLAY: ("扮演", "假设你", "假如你", "你现在是"),
    PromptType.LIST: ("列出", "列举", "推荐", "建议", "清单", "举例"),
    PromptType.REASONING: ("为什么", "推理", "分析", "比较", "原因", "评价"),
    PromptType.EXPLAIN: ("解释", "介绍", "如何", "怎么", "怎样", "说明", "区别", "描述"),
    PromptType.FACT: ("什么", "谁", "哪", "何时", "是否"),
    PromptType.CHAT: ("你好", "谢谢", "继续", "再见"),
}
_WORDS = {kind: frozenset(word.encode() for word in words.split()) for kind, words in _ENGLISH.items()}


def window(text: str) -> str:
    """The part of a prompt that says what is wanted: its beginning and its end."""
    if len(text) <= 2 * WINDOW_CHARS:
        return text
    return f"{text[:WINDOW_CHARS]}\n{text[-WINDOW_CHARS:]}"


def words(part: str) -> list[bytes]:
    """Lower-case words in UTF-8, without punctuation. `part`: see `window`."""
    return part.encode("utf-8", "surrogatepass").translate(_BLANK).split()


def phrases(spoken: list[bytes]) -> list[bytes]:
    """Pairs of neighbours at either end, and which word comes first. `spoken`: see `words`."""
    if not spoken:
        return []
    ends = spoken if len(spoken) <= 2 * PAIRED_WORDS else spoken[:PAIRED_WORDS] + spoken[-PAIRED_WORDS:]
    return [b"^" + spoken[0], *[b"%b %b" % pair for pair in pairwise(ends)]]


def kinds(part: str, found: frozenset[bytes]) -> tuple[float, ...]:
    """For each of TYPES, 1.0 if the prompt looks like it. `found`: the words of `part`."""
    isdisjoint = found.isdisjoint
    english = [not isdisjoint(_WORDS[kind]) for kind in TYPES]
    if part.isascii():
        return tuple(map(float, english))
    return tuple(
        float(latin or any(word in part for word in _CHINESE[kind]))
        for kind, latin in zip(TYPES, english, strict=True)
    )


def named(marks: tuple[float, ...]) -> PromptType:
    """One type of those marked by `kinds`: the most particular. Nothing marked: chat."""
    for kind, mark in zip(TYPES, marks, strict=True):
        if mark:
            return kind
    return PromptType.CHAT
