"""Hugging Face configs: published totals, every field used or refused, and no file that breaks the program."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt_match.budget.active import active_counts
from smelt_match.budget.context import Context
from smelt_match.budget.conventions import convention
from smelt_match.budget.ledger import ledger
from smelt_match.cli import run
from smelt_match.errors import BadInput
from smelt_match.spec.family import expand
from smelt_match.spec.huggingface.reader import ARCHITECTURES
from smelt_match.spec.model import ModelSpec
from smelt_match.spec.published import real_models
from tests.conftest import Ran

CONFIGS = Path(__file__).parent / "configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.json"))

# The exact totals that ship with the package, each with its source.
PUBLISHED = {
    model.spec.name.lower(): int(figure.value) - figure.beyond
    for model in real_models()
    for figure in model.figures
    if figure.quantity == "params_total" and figure.value.isdigit()
}


def config(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))
    return document


def spec_of(name: str) -> ModelSpec:
    spec = expand(str(CONFIGS / f"{name}.json"))[0].spec
    assert isinstance(spec, ModelSpec)
    return spec


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """A config file of some text, or of a shipped config with changed fields (None deletes nothing: use DELETE)."""

    def call(source: str | bytes, delete: str = "", **changes: Any) -> Path:
        path = tmp_path / "config.json"
        if isinstance(source, bytes):
            path.write_bytes(source)
        elif source in NAMES:
            document = config(source) | changes
            document.pop(delete, None)
            path.write_text(json.dumps(document), encoding="utf-8")
        else:
            path.write_text(source, encoding="utf-8")
        return path

    return call


@pytest.mark.parametrize("name", sorted(PUBLISHED.keys() & set(NAMES)))
def test_totals_are_the_published_ones_to_the_last_parameter(name: str) -> None:
    assert active_counts(spec_of(name)).total == PUBLISHED[name]


@pytest.mark.parametrize("name", NAMES)
def test_every_field_is_used_or_ignored_and_none_is_both(name: str) -> None:
    imported = expand(str(CONFIGS / f"{name}.json"))[0].imported
    assert imported is not None
    listed = [*imported.used, *(text.partition(" (")[0] for text in imported.ignored)]
    assert len(listed) == len(set(listed))
    tops = {key.partition(".")[0] for key in listed}
    assert tops == set(config(name))


def test_the_three_active_counts_of_mixtral() -> None:
    counts = active_counts(spec_of("mixtral-8x7b-v0.1"))
    assert counts.with_embeddings == 12_879_925_248
    assert counts.one_traversal == counts.executed == 12_879_925_248 - 2 * 32_000 * 4096


def test_a_tied_embedding_is_counted_once() -> None:
    counts = active_counts(spec_of("qwen3-0.6b"))
    assert counts.total == counts.one_traversal + 151_936 * 1024


def test_latent_attention_caches_576_elements_for_each_layer() -> None:
    budget = ledger(spec_of("deepseek-v3"), convention("paper"), Context.causal(4096)).budget
    assert budget.kv == 61 * 576


def test_dense_layers_shared_experts_and_biases_come_from_their_fields() -> None:
    glm = spec_of("glm-4.5-air")
    assert (glm.dense_layers, glm.dense_intermediate_size, glm.shared_expert_intermediate_size) == ("1", 10944, 1408)
    assert (glm.attention_bias, glm.attention_output_bias, glm.qk_norm) == (True, False, "none")
    qwen = spec_of("qwen1.5-moe-a2.7b")
    assert (qwen.shared_expert_intermediate_size, qwen.shared_expert_gate, qwen.attention_bias) == (5632, True, True)
    deepseek = spec_of("deepseek-v3")
    assert (deepseek.dense_layers, deepseek.dense_intermediate_size) == ("1-3", 18432)


def test_sparse_steps_and_listed_layers_are_dense(write: Callable[..., Path]) -> None:
    path = write("qwen3-30b-a3b", decoder_sparse_step=2, mlp_only_layers=[1, 5], num_hidden_layers=8)
    spec = expand(str(path))[0].spec
    assert isinstance(spec, ModelSpec)
    assert spec.dense == {0, 1, 2, 4, 5, 6}


def test_windows_come_from_layer_types_patterns_and_switches(write: Callable[..., Path]) -> None:
    assert spec_of("gpt-oss-20b").windowed == frozenset(range(0, 24, 2))
    assert spec_of("gemma-2-9b").windowed == frozenset(range(0, 42, 2))
    assert spec_of("gemma-3-1b").windowed == frozenset(index for index in range(26) if (index + 1) % 6)
    assert spec_of("mistral-7b-v0.1").windowed == frozenset(range(32))
    assert not spec_of("qwen2.5-7b").windowed
    late = expand(str(write("qwen2.5-7b", use_sliding_window=True, max_window_layers=20)))[0].spec
    assert isinstance(late, ModelSpec)
    assert late.windowed == frozenset(range(20, 28))


def test_loops_are_read_as_the_model_runs_them() -> None:
    assert spec_of("ouro-1.4b").visits.counts == (4,) * 24
    assert spec_of("huginn-0125").visits.counts == (1, 1, 32, 32, 32, 32, 1, 1)
    assert spec_of("huginn-0125").backward_visits == 8
    hrm = spec_of("hrm-text-1b")
    low, high = list(range(16)), list(range(16, 32))
    assert list(hrm.visits.visits) == (low * 3 + high) * 2
    assert hrm.backward_visits == 1 + 2  # L_bp_cycles [2] is padded to [1, 2]
    assert spec_of("inkling-2-mini").visits.counts == (1,) * 6 + (3,) * 12 + (1,) * 6


def test_truncated_backward_passes_cost_only_their_forward_pass() -> None:
    """Huginn's own FLOP count takes 24 recurrences without gradient and 8 with it."""
    spec = spec_of("huginn-0125")
    rule, context = convention("6n"), Context.causal(4096)
    block = 4 * 5280**2 + 3 * 5280 * 17920
    inner = 4 * (block + 4 * 5280 + 2 * 5280) + 2 * 5280**2
    outer = 4 * (block + 4 * 5280 + 2 * 5280) + 2 * 5280
    assert ledger(spec, rule, context).budget.flops == 6 * outer + (2 * 32 + 4 * 8) * inner
    scores = 12 * 5280 * context.mean
    budget = ledger(spec, convention("paper"), context).budget
    assert budget.attention == 4 * scores + 4 * scores * (32 + 2 * 8) / 3


def test_a_folder_a_file_and_a_bare_name_give_the_same_model(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("olmoe-1b-7b")
    monkeypatch.chdir(path.parent)
    found = [expand(text)[0].spec for text in (str(path), str(path.parent), ".", "config.json")]
    assert all(spec == found[0] for spec in found)
    assert found[0].name == path.parent.name


def test_the_cache_folder_of_the_hub_is_named_by_its_config(tmp_path: Path) -> None:
    folder = tmp_path / "models--allenai--OLMoE" / "snapshots" / ("0" * 40)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config("olmoe-1b-7b") | {"_name_or_path": "allenai/OLMoE-1B-7B"}))
    assert expand(str(folder))[0].spec.name == "OLMoE-1B-7B"


def test_a_spec_in_json_is_still_a_spec(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    fields = {"hidden_size": 64, "num_layers": 2, "num_experts": 4, "experts_per_token": 1, "head_dim": 16,
              "expert_intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
    path.write_text(json.dumps({"name": "mine", **fields}), encoding="utf-8")
    assert expand(str(path))[0].spec.name == "mine"


@pytest.mark.parametrize("kind", sorted(ARCHITECTURES))
def test_a_field_that_nobody_knows_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind, "attention_stride": 3}), encoding="utf-8")
    with pytest.raises(BadInput) as caught:
        expand(str(path))
    assert f"{path}: attention_stride: unknown field" in caught.value.message


@pytest.mark.parametrize("name", NAMES)
def test_each_used_field_is_refused_under_another_name(name: str, tmp_path: Path) -> None:
    imported = expand(str(CONFIGS / f"{name}.json"))[0].imported
    assert imported is not None
    path = tmp_path / "config.json"
    for key in imported.used:
        if "." in key or key == "model_type":
            continue
        document = {(f"my_{key}" if field == key else field): value for field, value in config(name).items()}
        path.write_text(json.dumps(document), encoding="utf-8")
        with pytest.raises(BadInput, match=f"my_{key}: unknown field"):
            expand(str(path))


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("", "is empty"),
        (b"\x89PNG\x0d\x0a\x1a\x0a\x00\x00", "not UTF-8"),
        (b"\x00" * 64, "binary data"),
        ('{"model_type": "llama", "hidden_size": 40', ":1: not valid JSON"),
        ("[1, 2]", "a config is a JSON object"),
        ("[" * 100_000, "nested too deep"),
        ('{"a": ' * 500 + "1" + "}" * 500, "nested too deep"),
        ('{"model_type": "llama", "vocab_size": 1, "vocab_size": 2}', "vocab_size: key given twice"),
        ('{"model_type": "llama", "rms_norm_eps": NaN}', "rms_norm_eps: not a finite number"),
        ('{"model_type": "llama", "rms_norm_eps": 1e999}', "rms_norm_eps: not a finite number"),
        ('{"model_type": "llama", "x": {"y": -Infinity}}', "x.y: not a finite number"),
        ('{"model_type": "llama", "vocab_size": ' + "9" * 5000 + "}", "vocab_size: not a finite number"),
        ("{}", "model_type: required field is missing"),
        ('{"model_type": 3}', "model_type: a name is wanted, found 3"),
        ('{"auto_map": {"AutoConfig": "mine.Config"}, "hidden_size": 8}',
         "model_type: required field is missing, and its own code (auto_map) cannot be counted"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_config_is_refused_in_a_sentence(
    write: Callable[..., Path], cli: Callable[..., Ran], source: str | bytes, told: str
) -> None:
    path = write(source)
    ran = cli("count", path)
    assert (ran.code, ran.out) == (2, "")
    assert str(path) in ran.err
    assert told in ran.err


def test_a_huge_file_is_not_read(tmp_path: Path, cli: Callable[..., Ran]) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as stream:
        stream.truncate(100 * 2**20)
    ran = cli("count", path)
    assert ran.code == 2
    assert "more than the" in ran.err


def test_a_folder_without_a_config_is_named(tmp_path: Path, cli: Callable[..., Ran]) -> None:
    ran = cli("count", f"{tmp_path}/")
    assert ran.code == 2
    assert "has no config.json" in ran.err


def test_an_unknown_type_is_refused_with_close_and_known_names(
    write: Callable[..., Path], cli: Callable[..., Ran]
) -> None:
    ran = cli("count", write("mixtral-8x7b-v0.1", model_type="mixtrel", auto_map={"AutoConfig": "x.Y"}))
    assert ran.code == 2
    assert "'mixtrel' is not known, and its own code (auto_map) cannot be counted" in ran.err
    assert "did you mean mixtral" in ran.err
    assert all(kind in ran.err for kind in ARCHITECTURES)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config: a mapping: a quantised checkpoint"),
        ({"rope_scaling": {"type": "spiral"}}, "rope_scaling.rope_type: unknown type 'spiral'"),
        ({"hidden_size": "4096"}, "hidden_size: a whole number from 1 to 16,777,216 is wanted, found '4096'"),
        ({"hidden_size": 4096.0}, "hidden_size: a whole number"),
        ({"num_experts_per_tok": True}, "num_experts_per_tok: a whole number"),
        ({"vocab_size": -1}, "vocab_size: a whole number"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings: true or false is wanted, found 1"),
        ({"num_key_value_heads": 5}, "num_key_value_heads: 5 does not divide num_attention_heads 32"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok: 9 is more than num_local_experts 8"),
        ({"num_experts": 7}, "num_experts: 7, but num_local_experts is 8"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder: true: only decoder-only models"),
        ({"architectures": ["MixtralForSequenceClassification"]}, "only causal language models can be counted"),
        ({"architectures": ["LlamaForCausalLM"]}, "'LlamaForCausalLM' is of the type 'llama', but model_type is"),
        ({"hidden_act": 7}, "hidden_act: the name of an activation is wanted, found 7"),
        ({"hidden_act": "nonsense"}, "hidden_act: the name of an activation is wanted, found 'nonsense'"),
        ({"num_attention_heads": 24, "num_key_value_heads": 8}, "24 does not divide hidden_size 4096"),
        ({"per_layer_config": {"3": {"head_dim": 4}}}, "per_layer_config: a mapping: layers of different sizes"),
    ],
)
def test_a_field_that_cannot_be_counted_is_named(
    write: Callable[..., Path], cli: Callable[..., Ran], changes: dict[str, Any], told: str
) -> None:
    path = write("mixtral-8x7b-v0.1", **changes)
    ran = cli("count", path)
    assert (ran.code, ran.out) == (2, "")
    assert f"error: {path}: " in ran.err
    assert told in ran.err


def test_all_faults_of_a_file_are_told_at_once(write: Callable[..., Path], cli: Callable[..., Ran]) -> None:
    path = write("mixtral-8x7b-v0.1", delete="vocab_size", hidden_size="wide", extra_norms=4, rms_norm_eps=2)
    ran = cli("count", path)
    for fault in ("vocab_size: required field", "hidden_size: a whole", "extra_norms: unknown", "rms_norm_eps: a num"):
        assert fault in ran.err
    assert len(ran.err.splitlines()) == 4 + 1


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        ("gpt-oss-20b", {"layer_types": ["full_attention"]}, "layer_types: 1 entries, num_hidden_layers is 24"),
        ("gpt-oss-20b", {"layer_types": ["linear_attention"] * 24}, "layer_types: unknown type 'linear_attention'"),
        ("gpt-oss-20b", {"sliding_window": None}, "layer_types: layer 1 is sliding_attention, but sliding_window is"),
        ("gpt-oss-20b", {"sliding_window": 0}, "sliding_window: a window of 0 tokens"),
        ("qwen3-0.6b", {"layer_types": ["sliding_attention"] * 28}, "but use_sliding_window is false"),
        ("deepseek-v2-lite", {"mlp_bias": True}, "mlp_bias: true: biases on dense and shared experts"),
        ("huginn-0125", {"injection_type": "add"}, "injection_type: 'add': only the linear adapter"),
        ("huginn-0125", {"n_layers": 9}, "n_layers: 9, but the other fields make it 8"),
        ("huginn-0125", {"mean_backprop_depth": 33}, "mean_backprop_depth: 33 is more than mean_recurrence 32"),
        ("hrm-text-1b", {"num_hidden_layers": 16}, "num_hidden_layers: 16, but num_layers_per_stack"),
        ("hrm-text-1b", {"L_bp_cycles": [0, 1]}, "L_bp_cycles: a cycle without a backward pass"),
        ("ouro-1.4b", {"total_ut_steps": 10**9}, "total_ut_steps: a whole number from 1 to 100,000"),
        ("ouro-1.4b", {"total_ut_steps": 90_000}, "total_ut_steps: 90,000, which makes 2,160,000 visits"),
    ],
)
def test_what_an_architecture_cannot_hold_is_refused(
    write: Callable[..., Path], cli: Callable[..., Ran], name: str, changes: dict[str, Any], told: str
) -> None:
    ran = cli("count", write(name, **changes))
    assert ran.code == 2
    assert told in ran.err


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"swa_head_dim": 64}, "text_config.swa_head_dim: 64, but head_dim is 128: layers of two geometries"),
        ({"loop_layer_index_end": 17}, "text_config.loop_layer_index_end: 17 is not a multiple of n_layers"),
        ({"loop_layer_index_start": 0}, "text_config.loop_layer_index_end: a loop of layers 0 to 18"),
        ({"loop_config": {"core_end": "x"}}, "text_config.loop_config.core_end: a whole number"),
        ({"model_type": "llama"}, "text_config.model_type: 'inkling2_loop_text' is wanted, found 'llama'"),
        ({"vision_tokens": 1}, "text_config.vision_tokens: unknown field"),
    ],
)
def test_faults_inside_a_text_config_carry_its_name(
    write: Callable[..., Path], cli: Callable[..., Ran], changes: dict[str, Any], told: str
) -> None:
    ran = cli("count", write("inkling-2-mini", text_config=config("inkling-2-mini")["text_config"] | changes))
    assert ran.code == 2
    assert told in ran.err


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.integers(0, 4) | st.floats(allow_nan=True)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(NAMES), st.data())
def test_no_change_of_a_config_breaks_the_program(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    document = config(name)
    place = document
    if "text_config" in document and data.draw(st.booleans()):
        place = document["text_config"]
    for key in data.draw(st.lists(st.sampled_from(sorted(place)), min_size=1, max_size=3, unique=True)):
        if data.draw(st.booleans()):
            del place[key]
        else:
            place[key] = data.draw(JUNK)
    path = tmp_path_factory.mktemp("config") / "config.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(["count", str(path)])
    assert code in (0, 2), err.getvalue()
    assert (code == 0) == bool(out.getvalue())


def test_count_tells_the_active_counts_and_the_fate_of_every_field(cli: Callable[..., Ran]) -> None:
    ran = cli("count", CONFIGS / "deepseek-v3.json")
    assert ran.code == 0
    assert "active by one traversal, without embeddings (the paper's): " in ran.out
    assert "executed at every visit, without embeddings: " in ran.out
    assert "active with embedding and output head (as most model cards print it): " in ran.out
    assert "total with embedding and output head: 671,026,404,352" in ran.out
    assert "fields used: architectures, attention_bias, first_k_dense_replace" in ran.out
    assert "num_nextn_predict_layers (multi-token prediction layers are left out of every count)" in ran.out
    assert "one causal document of 4,096 tokens" in ran.out


def test_json_carries_the_same(cli: Callable[..., Ran]) -> None:
    ran = cli("count", CONFIGS / "gemma-3-4b.json", "--format", "json")
    result = json.loads(ran.out)["results"][0]
    assert result["active"]["params_total_with_embeddings"] == 3_880_263_168
    assert result["imported"]["model_type"] == "gemma3"
    assert "text_config.head_dim 256" in result["imported"]["fields_by_default"]
    assert json.loads(cli("count", "200m_s95", "--format", "json").out)["results"][0]["imported"] is None


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        ("llama-3.1-8b", {}, "rope_scaling: llama3"),
        ("qwen3-30b-a3b", {"hidden_act": "gelu_pytorch_tanh"}, "hidden_act 'gelu_pytorch_tanh'"),
        ("mixtral-8x7b-v0.1", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_parameters: yarn"),
        ("olmoe-1b-7b", {"clip_qkv": 8.0}, "clip_qkv 8.0"),
        ("llama-3.1-8b", {"rope_scaling": None, "partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ("glm-4.5-air", {}, "the router takes sigmoids"),
        ("granite-3.0-1b-a400m", {}, "multipliers"),
        ("gemma-3-4b", {}, "embeddings are scaled"),
        ("gpt-neox-20b", {}, "side by side"),
        ("dbrx-base", {}, "projections are clipped"),
    ],
)
@pytest.mark.parametrize("to", ["hf-unrolled", "hf", "megatron", "torchtitan"])
def test_what_a_spec_cannot_say_is_told_and_never_exported(
    write: Callable[..., Path], cli: Callable[..., Ran], name: str, changes: dict[str, Any], told: str, to: str
) -> None:
    """Such a model would be another function of the same size: its counts hold, an export of it would not."""
    path = write(name, **changes)
    ran = cli("export", path, "--to", to, "-o", path.parent / "out")
    assert (ran.code, ran.out) == (2, "")
    assert "a spec cannot say this: " in ran.err
    assert told in ran.err
    assert not (path.parent / "out").exists()
    counted = cli("count", path)
    assert counted.code == 0
    assert "of its function, no count depends on this, and no spec says it: " in counted.out
    assert told in counted.out


@pytest.mark.parametrize("name", ["mistral-7b-v0.1", "mixtral-8x7b-v0.1", "olmoe-1b-7b", "qwen1.5-moe-a2.7b",
                                  "qwen2.5-7b", "qwen3-0.6b", "qwen3-30b-a3b"])  # fmt: skip
def test_what_a_spec_says_whole_leaves_nothing_out(name: str) -> None:
    imported = expand(str(CONFIGS / f"{name}.json"))[0].imported
    assert imported is not None
    assert imported.left_out == ()


@pytest.mark.parametrize("text", ['{"auto_map": {"AutoConfig": "x.Y"}}', "{}", '{"hidden_size": 8}'])
@pytest.mark.parametrize("file", ["config.json", "other.json"])
def test_json_that_is_no_spec_is_read_as_a_config_under_any_name(tmp_path: Path, text: str, file: str) -> None:
    (tmp_path / file).write_text(text)
    with pytest.raises(BadInput, match="model_type: required field is missing"):
        expand(str(tmp_path / file))


def test_a_bare_name_of_a_folder_without_a_config_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dironly").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"dironly: this folder has no config\.json"):
        expand("dironly")


def test_an_unknown_name_is_told_how_other_models_are_named() -> None:
    with pytest.raises(BadInput) as caught:
        expand("Kimi-K2-Instruct")
    assert caught.value.hint.endswith("any other model is named by the folder with its config.json")


def test_no_field_is_listed_twice() -> None:
    for name in NAMES:
        imported = expand(str(CONFIGS / f"{name}.json"))[0].imported
        assert imported is not None
        assert len(imported.used) == len(set(imported.used)), name
