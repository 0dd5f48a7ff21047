"""What other packages warn about is theirs; here, too, a warning of ours is an error."""

import pytest

# Of Beam, TFDS and what they bring.
_THEIRS = ("DeprecationWarning", "FutureWarning", "ResourceWarning", "UserWarning")


def pytest_collection_modifyitems(items):
    for item in items:
        for kind in _THEIRS:
            item.add_marker(pytest.mark.filterwarnings(f"ignore::{kind}"))
        item.add_marker(pytest.mark.filterwarnings("error:::fedeqx"))
