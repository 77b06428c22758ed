"""The tokenizers of the guide, built from small local files, and the engine that is chosen for them."""

from __future__ import annotations

import base64
import json

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.preprocess import corpus
from turnout.preprocess import storage
from turnout.preprocess.documents import LineReader
from turnout.preprocess.errors import BadOption
from turnout.preprocess.model import Piece, TextChunk
from turnout.preprocess.options import Engine, TokenizerFiles, TokenizerType
from turnout.preprocess.plan import find_input_files
from turnout.preprocess.sample import PLACE_BYTES, sample_texts
from turnout.preprocess.tokenizers.encoders import BATCH_CHARACTERS, MIN_CACHED_CHARACTERS, batches, get_encoder
from turnout.preprocess.tokenizers.engine_choice import choose_engine
from turnout.preprocess.tokenizers.load import load_tokenizer
from turnout.preprocess.tokenizers.settings import EncoderSettings, Vocabulary, cut_text, is_splittable

BYTE_RANKS = b"".join(base64.b64encode(bytes([byte])) + b" %d\n" % byte for byte in range(256))


def _ranks(*tokens: bytes) -> bytes:
    lines = (base64.b64encode(token) + b" %d\n" % (256 + rank) for rank, token in enumerate(tokens))
    return BYTE_RANKS + b"".join(lines)


RANKS = _ranks(b"th", b"the", b" the", b"in", b"ing")
# " the" cannot come about: "th" is merged before " t", and "the" is no token.
IMPOSSIBLE_RANKS = _ranks(b"th", b"he", b" t", b" the")

SIZE = 338  # of the vocabulary that the words of the corpus give


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Small vocabularies of every kind in one folder."""
    folder = tmp_path_factory.mktemp("vocabularies")
    (folder / "tokenizer.json").write_text(corpus.tokenizer_json())
    model = json.loads(corpus.tokenizer_json())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    (folder / "gpt2").mkdir()
    for name in ("vocab.json", "merges.txt"):
        (folder / "gpt2" / name).write_bytes((folder / name).read_bytes())
    (folder / "cl100k_small.tiktoken").write_bytes(RANKS)
    (folder / "own.tiktoken").write_bytes(RANKS)
    (folder / "impossible.tiktoken").write_bytes(IMPOSSIBLE_RANKS)
    (folder / "bad.tiktoken").write_bytes(BYTE_RANKS + b"no rank\n")
    (folder / "bad.json").write_text("{}")
    return folder


def loaded(files, kind: TokenizerType, **changes: object) -> EncoderSettings:
    named = {name: str(files / value) if name.endswith("_file") else value for name, value in changes.items()}
    return load_tokenizer(TokenizerFiles(kind, **named), storage.read_bytes, storage.is_folder)


@pytest.mark.contract("DL-72", "DL-73")
@pytest.mark.parametrize(
    ("kind", "changes", "size", "eod"),
    [
        pytest.param(
            TokenizerType.HF, {"vocab_file": "tokenizer.json"}, SIZE, 0, id="HFTokenizer reads tokenizer.json"
        ),
        pytest.param(TokenizerType.HF, {"vocab_file": ""}, SIZE, 0, id="or the folder that holds it"),
        pytest.param(TokenizerType.HF_GPT2, {"vocab_file": "gpt2"}, SIZE, 0, id="HFGPT2Tokenizer reads GPT-2's folder"),
        pytest.param(
            TokenizerType.GPT2_BPE,
            {"vocab_file": "vocab.json", "merge_file": "merges.txt"},
            SIZE,
            0,
            id="GPT2BPETokenizer reads vocab.json and merges.txt",
        ),
        pytest.param(TokenizerType.CHAR_LEVEL, {}, 512, 0, id="CharLevelTokenizer needs no file"),
        pytest.param(
            TokenizerType.TIKTOKEN,
            {"vocab_file": "cl100k_small.tiktoken"},
            262,
            261,
            id="TiktokenTokenizer reads ranks",
        ),
    ],
)
def test_a_tokenizer_is_built_from_local_files(kind, changes, size, eod, files):
    settings = loaded(files, kind, **changes)
    assert (settings.vocabulary_size, settings.eod) == (size, eod)
    (ids,) = get_encoder(settings).encode(["the thing in Größe"])
    assert 0 < len(ids) <= len("the thing in Größe".encode())
    assert int(ids.max()) < size


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        pytest.param(TokenizerType.HF, {}, "needs --vocab-file", id="no vocabulary"),
        pytest.param(TokenizerType.HF, {"vocab_file": "gone.json"}, "gone.json: .*No such file", id="a missing file"),
        pytest.param(TokenizerType.HF, {"vocab_file": "bad.json"}, "not a tokenizer.json", id="another JSON file"),
        pytest.param(TokenizerType.GPT2_BPE, {"vocab_file": "vocab.json"}, "needs --merge-file", id="no merges"),
        pytest.param(
            TokenizerType.GPT2_BPE,
            {"vocab_file": "vocab.json", "merge_file": "bad.tiktoken"},
            "bad.tiktoken",
            id="merges of another vocabulary",
        ),
        pytest.param(TokenizerType.TIKTOKEN, {"vocab_file": "bad.tiktoken"}, "line 257", id="a broken line of ranks"),
        pytest.param(TokenizerType.TIKTOKEN, {"vocab_file": "own.tiktoken"}, "--tiktoken-pattern", id="no split rule"),
        pytest.param(
            TokenizerType.TIKTOKEN,
            {"vocab_file": "own.tiktoken", "tiktoken_pattern": "x"},
            "unknown; known are gpt2, cl100k, o200k",
            id="an unknown split rule",
        ),
    ],
)
def test_a_wrong_vocabulary_is_named(kind, changes, message, files):
    with pytest.raises(BadOption, match=message):
        loaded(files, kind, **changes)


@pytest.mark.parametrize(
    ("settings", "library"),
    [
        pytest.param(EncoderSettings(Vocabulary.TOKENIZER_JSON, b"{}", SIZE), "Hugging Face tokenizers", id="no model"),
        pytest.param(
            EncoderSettings(Vocabulary.TIKTOKEN, BYTE_RANKS + b"dGg= %d\n" % 2**32, 2**32 + 2, eod=0, pattern="gpt2"),
            "tiktoken",
            id="a rank of more than 32 bits",
        ),
    ],
)
def test_a_vocabulary_that_its_library_refuses_is_a_wrong_option(settings, library):
    with pytest.raises(BadOption, match=f"^{library} cannot read this vocabulary"):
        get_encoder(settings)
    with pytest.raises(BadOption, match=f"^{library} cannot read this vocabulary"):
        choose_engine(settings, [])


def test_bytes_are_tokens_of_the_char_level_tokenizer(files):
    (ids,) = get_encoder(loaded(files, TokenizerType.CHAR_LEVEL)).encode(["aß\0"])
    assert ids.tolist() == [97, 195, 159, 0]


VOCABULARIES = {
    "tokenizer.json": (TokenizerType.HF, {"vocab_file": "tokenizer.json"}),
    "gpt2 files": (TokenizerType.GPT2_BPE, {"vocab_file": "vocab.json", "merge_file": "merges.txt"}),
    **{
        f"tiktoken with {name}": (TokenizerType.TIKTOKEN, {"vocab_file": "own.tiktoken", "tiktoken_pattern": name})
        for name in ("gpt2", "cl100k", "o200k")
    },
}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_gigatoken_is_chosen_where_tokens_are_equal(name, files):
    kind, changes = VOCABULARIES[name]
    choice = choose_engine(loaded(files, kind, **changes), corpus.texts(100))
    assert (choice.engine, "100 documents" in choice.reason) == (Engine.GIGATOKEN, True)


def _changed(files, **parts: object) -> EncoderSettings:
    content = json.loads(corpus.tokenizer_json()) | parts
    (files / "changed.json").write_text(json.dumps(content))
    return loaded(files, TokenizerType.HF, vocab_file="changed.json")


def test_the_reference_is_chosen_for_a_vocabulary_of_another_kind(files):
    word_level = {"type": "WordLevel", "vocab": {"the": 0, "[UNK]": 1}, "unk_token": "[UNK]"}
    settings = _changed(files, model=word_level, pre_tokenizer={"type": "Whitespace"}, decoder=None, added_tokens=[])
    choice = choose_engine(settings, ["the cat"])
    assert choice.engine is Engine.REFERENCE
    assert "gigatoken" in choice.reason


def test_the_reference_is_chosen_where_gigatoken_panics(files):
    settings = loaded(files, TokenizerType.TIKTOKEN, vocab_file="impossible.tiktoken", tiktoken_pattern="gpt2")
    choice = choose_engine(settings, ["the cat"])
    assert (choice.engine, "gigatoken cannot read" in choice.reason) == (Engine.REFERENCE, True)


def test_the_reference_is_chosen_where_tokens_differ(files):
    lower = {"type": "Lowercase"}
    choice = choose_engine(_changed(files, normalizer=lower), ["The Cat"])
    assert choice.engine is Engine.REFERENCE


ADDED = {"id": SIZE, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


@pytest.mark.parametrize(
    ("parts", "splittable"),
    [
        pytest.param({}, True, id="GPT-2's rule"),
        pytest.param({"normalizer": {"type": "NFC"}}, False, id="a normalizer"),
        pytest.param({"pre_tokenizer": None}, False, id="no split rule"),
        pytest.param({"added_tokens": [ADDED | {"content": "<a b>"}]}, False, id="a special token with a blank"),
        pytest.param({"added_tokens": [ADDED | {"content": "<x>", "rstrip": True}]}, False, id="one that eats blanks"),
        pytest.param({"added_tokens": [ADDED | {"content": "<x>"}]}, True, id="another special token"),
    ],
)
def test_a_text_may_be_cut_only_under_known_rules(parts, splittable, files):
    assert is_splittable(_changed(files, **parts)) is splittable


SPLIT_TEXT = st.lists(
    st.sampled_from(
        ["word", "n't", "'ll", " ", "  ", "\n", "\r\n", "Größe", "北京", "12", "<|endoftext|>", "x=1;", ". "]
    ),
    max_size=60,
).map(" a b ".join)


@pytest.mark.parametrize("name", [*VOCABULARIES, "llama's split rule"])
@given(text=SPLIT_TEXT, maximum=st.integers(1, 40))
def test_pieces_of_a_text_give_the_tokens_of_the_whole(name, text, maximum, files):
    if name in VOCABULARIES:
        kind, changes = VOCABULARIES[name]
        settings = loaded(files, kind, **changes)
    else:
        rule = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        rule += r"|\s*[\r\n]+|\s+(?!\S)|\s+"
        split = {"type": "Split", "pattern": {"Regex": rule}, "behavior": "Isolated", "invert": False}
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        settings = _changed(files, pre_tokenizer={"type": "Sequence", "pretokenizers": [split, byte_level]})
    assert is_splittable(settings)
    pieces = cut_text(text, maximum)
    assert "".join(pieces) == text
    for engine in (Engine.REFERENCE, Engine.GIGATOKEN):
        encode = get_encoder(msgspec.structs.replace(settings, engine=engine)).encode
        assert np.concatenate(encode(pieces)).tolist() == encode([text])[0].tolist()


def test_a_text_beyond_a_batch_has_its_own_tokens(files):
    long = "the quick brown fox " * (BATCH_CHARACTERS // 20 + 50)
    settings = loaded(files, TokenizerType.HF, vocab_file="tokenizer.json")
    candidate = msgspec.structs.replace(settings, engine=Engine.GIGATOKEN)
    given_texts = ["a", long, "b"]
    for one, other in zip(
        get_encoder(settings).encode(given_texts), get_encoder(candidate).encode(given_texts), strict=True
    ):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("before", [[], [""], ["a"]], ids=["it is first", "behind an empty text", "behind another"])
def test_a_text_beyond_a_batch_is_a_batch_of_its_own(before):
    long = "x" * (BATCH_CHARACTERS + 1)
    assert [len(batch) for batch in batches([*before, long, "b"])] == [*([1] if before else []), 1, 1]


def test_a_cache_that_is_emptied_changes_no_token(files):
    settings = loaded(files, TokenizerType.HF, vocab_file="tokenizer.json")
    expected_tokens = get_encoder(settings).encode(["the quick brown fox", "Größe 北京"])
    bounded = get_encoder(msgspec.structs.replace(settings, engine=Engine.GIGATOKEN, cache_bytes=0))
    for _ in range(3):
        bounded.encode(["the quick brown fox " * (MIN_CACHED_CHARACTERS // 20 + 1)])
        given_ids = bounded.encode(["the quick brown fox", "Größe 北京"])
        assert [ids.tolist() for ids in given_ids] == [ids.tolist() for ids in expected_tokens]


def test_settings_can_be_sent(files):
    settings = loaded(files, TokenizerType.HF, vocab_file="tokenizer.json")
    assert settings.vocabulary is Vocabulary.TOKENIZER_JSON
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(settings), type=EncoderSettings) == settings


def test_the_rest_of_a_line_is_no_document_of_the_sample(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text":"'.ljust(PLACE_BYTES, b"x") + b'{"text":"inner"}')
    sources = find_input_files(corpus.options(tmp_path, "a.jsonl"))
    chunk = TextChunk(0, (Piece(0, 0, sources[0].size_bytes),))
    assert sample_texts(sources, [chunk], LineReader(("text",), 1 << 30), 10) == []
