"""Models, as Equinox modules on one example, and their losses."""

from ._cnn import CNN as CNN
from ._config import TransformerConfig as TransformerConfig
from ._loss import next_token_loss as next_token_loss
from ._loss import next_token_nll as next_token_nll
from ._transformer import Transformer as Transformer

__all__ = ["CNN", "Transformer", "TransformerConfig", "next_token_loss", "next_token_nll"]
