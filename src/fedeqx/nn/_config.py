"""The shape of a decoder-only transformer, and the shapes that published work uses."""

import dataclasses
from typing import Any, Literal, get_args

MLPKind = Literal["gelu", "swiglu"]
ComputeDtype = Literal["float32", "bfloat16"]
Remat = Literal["none", "matmuls", "full"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The shape of a [`fedeqx.nn.Transformer`][]; hashable, and plain data for JSON.

    **Arguments:**

    - `vocab_size`: number of token ids.
    - `width`: size of the residual stream.
    - `depth`: number of blocks.
    - `num_heads`: number of query heads; `width / num_heads` is the size of a head.
    - `num_kv_heads`: number of key and value heads, each shared by `num_heads / num_kv_heads`
        query heads (grouped-query attention, https://arxiv.org/abs/2305.13245).
    - `mlp_width`: hidden size of the MLP.
    - `mlp`: `"gelu"`, or `"swiglu"` (https://arxiv.org/abs/2002.05202), which has a third matrix.
    - `tie_embedding`: whether the output layer is the embedding.
    - `rope_theta`: base of the rotary frequencies (https://arxiv.org/abs/2104.09864).
    - `norm_eps`: what RMSNorm adds to the mean square (https://arxiv.org/abs/1910.07467).
    - `compute_dtype`: dtype of activations and matrix products. Parameters, norms, softmax and
        logits are float32 in any case.
    - `remat`: what the backward pass computes again rather than keeps: `"none"`; `"matmuls"`
        keeps the matrix products only, less memory and on a CPU also less time; `"full"` keeps
        the input of each block only.

    Raises a `ValueError` that names the field if the sizes do not fit.

    ```python
    >>> TransformerConfig.preset("tiny", depth=2).head_size
    32

    ```
    """

    vocab_size: int
    width: int
    depth: int
    num_heads: int
    num_kv_heads: int
    mlp_width: int
    mlp: MLPKind = "gelu"
    tie_embedding: bool = True
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    compute_dtype: ComputeDtype = "float32"
    remat: Remat = "matmuls"

    def __post_init__(self) -> None:
        for name in ("vocab_size", "width", "depth", "num_heads", "num_kv_heads", "mlp_width"):
            size = getattr(self, name)
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"`{name}` is {size!r}; give a whole number of at least 1.")
        for name in ("rope_theta", "norm_eps"):
            if not getattr(self, name) > 0:
                raise ValueError(f"`{name}` is {getattr(self, name)!r}; give a number above 0.")
        for name, kind in (("mlp", MLPKind), ("compute_dtype", ComputeDtype), ("remat", Remat)):
            if getattr(self, name) not in get_args(kind):
                choices = ", ".join(map(repr, get_args(kind)))
                raise ValueError(f"`{name}` is {getattr(self, name)!r}; give one of {choices}.")
        if self.width % (2 * self.num_heads):
            raise ValueError(
                f"`width` is {self.width} with `num_heads` {self.num_heads}; rotary positions "
                f"turn pairs, so give a width that is a multiple of {2 * self.num_heads}."
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"`num_kv_heads` is {self.num_kv_heads}; give a divisor of `num_heads`, "
                f"which is {self.num_heads}."
            )

    @property
    def head_size(self) -> int:
        return self.width // self.num_heads

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> "TransformerConfig":
        """A named shape, with any of its fields replaced.

        **Arguments:**

        - `name`: `"tiny"` (1M parameters on bytes), or `"108M"`, `"350M"`, `"1B"`, `"8B"`, which
            have these many parameters at their own `vocab_size`.
        - `overrides`: fields of the config that differ from the preset, such as `vocab_size`.

        **Returns:** the config. Raises a `ValueError` that lists the names for an unknown one.

        ```python
        >>> TransformerConfig.preset("8B", compute_dtype="bfloat16").num_kv_heads
        8

        ```
        """
        if name not in _PRESETS:
            raise ValueError(f"No preset {name!r}; give one of {', '.join(map(repr, _PRESETS))}.")
        return cls(**{**_PRESETS[name], **overrides})


_PRESETS: dict[str, dict[str, Any]] = {
    # Bytes and one id for padding. Small enough for a federated demo on a CPU.
    "tiny": {
        "vocab_size": 257,
        "width": 128,
        "depth": 5,
        "num_heads": 4,
        "num_kv_heads": 4,
        "mlp_width": 512,
    },
    # BERT base as a decoder, as in Dataset Grouper (https://arxiv.org/abs/2307.09619).
    "108M": {
        "vocab_size": 30_523,
        "width": 768,
        "depth": 12,
        "num_heads": 12,
        "num_kv_heads": 12,
        "mlp_width": 3072,
    },
    # GPT-3 Medium (https://arxiv.org/abs/2005.14165) with the vocabulary of GPT-2.
    "350M": {
        "vocab_size": 50_257,
        "width": 1024,
        "depth": 24,
        "num_heads": 16,
        "num_kv_heads": 16,
        "mlp_width": 4096,
    },
    # Pythia 1B (https://arxiv.org/abs/2304.01373).
    "1B": {
        "vocab_size": 50_304,
        "width": 2048,
        "depth": 16,
        "num_heads": 8,
        "num_kv_heads": 8,
        "mlp_width": 8192,
        "tie_embedding": False,
    },
    # Llama 3 8B (https://arxiv.org/abs/2407.21783).
    "8B": {
        "vocab_size": 128_256,
        "width": 4096,
        "depth": 32,
        "num_heads": 32,
        "num_kv_heads": 8,
        "mlp_width": 14_336,
        "mlp": "swiglu",
        "tie_embedding": False,
        "rope_theta": 500_000.0,
        "norm_eps": 1e-5,
    },
}
