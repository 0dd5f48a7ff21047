import math

import equinox as eqx
import jax
import pytest

from fedeqx.nn import Transformer, TransformerConfig

_SIZES = {
    "vocab_size": 11,
    "width": 16,
    "depth": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "mlp_width": 24,
}


@pytest.mark.parametrize(
    ("field", "value", "advice"),
    [
        *[(name, 0, "whole number") for name in _SIZES],
        ("depth", 2.0, "whole number"),
        ("depth", True, "whole number"),
        ("width", 18, "multiple of 8"),
        ("width", 20, "multiple of 8"),
        ("num_kv_heads", 3, "divisor of `num_heads`"),
        ("num_kv_heads", 8, "divisor of `num_heads`"),
        ("rope_theta", 0.0, "above 0"),
        ("norm_eps", float("nan"), "above 0"),
    ],
)
def test_a_wrong_field_is_named(field, value, advice):
    # The run-time type checks of the tests get there first for a wrong type.
    with pytest.raises(Exception, match=rf"(?s){field}") as error:
        TransformerConfig(**{**_SIZES, field: value})
    assert advice in str(error.value) or "type" in str(error.value)


@pytest.mark.parametrize("field", ["mlp", "compute_dtype", "remat"])
def test_an_unknown_choice_is_named(field):
    with pytest.raises(Exception, match=f"{field}.*nope"):
        TransformerConfig.preset("tiny", **{field: "nope"})


def test_an_unknown_preset_lists_the_names():
    with pytest.raises(ValueError, match=r"'2B'.*'tiny', '108M', '350M', '1B', '8B'"):
        TransformerConfig.preset("2B")


def test_overrides_replace_fields_and_are_checked():
    config = TransformerConfig.preset("tiny", vocab_size=300, num_kv_heads=2)
    assert (config.vocab_size, config.num_kv_heads, config.width) == (300, 2, 128)
    with pytest.raises(ValueError, match="num_kv_heads"):
        TransformerConfig.preset("tiny", num_kv_heads=3)
    with pytest.raises(TypeError, match="heads_kv"):
        TransformerConfig.preset("tiny", heads_kv=2)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("tiny", 1e6), ("108M", 108e6), ("350M", 350e6), ("1B", 1e9), ("8B", 8e9)],
)
def test_presets_have_the_parameters_of_their_names(name, expected):
    config = TransformerConfig.preset(name)
    model = eqx.filter_eval_shape(lambda k: Transformer(config, key=k), jax.random.key(0))
    leaves = jax.tree.leaves(eqx.filter(model, lambda x: isinstance(x, jax.ShapeDtypeStruct)))
    assert sum(math.prod(leaf.shape) for leaf in leaves) == pytest.approx(expected, rel=0.05)
    assert {str(leaf.dtype) for leaf in leaves} == {"float32"}
