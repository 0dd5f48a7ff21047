"""PyTrees as JSON, so that a result can be put together without the classes that it is made of."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.tree_util as jtu

from .._placement import Clients, as_array, is_array, is_clients, is_field, is_number


def describe_tree(tree: Any) -> dict[str, Any]:
    """What a tree is made of. Its integers are numbers of arrays."""
    if is_clients(tree):
        return {"clients": describe_tree(tree.value)}
    if tree is None:
        return {"value": None}
    if isinstance(tree, int) and not isinstance(tree, bool):
        return {"array": tree}
    children = jtu.tree_leaves_with_path(tree, is_leaf=lambda node: node is not tree)
    if len(children) == 1 and children[0][1] is tree:
        return {"value": tree} if isinstance(tree, str | bool | float) else {"repr": repr(tree)}
    keys = [path[0] for path, _ in children]
    parts = [describe_tree(child) for _, child in children]
    if isinstance(tree, dict):
        named = {str(getattr(key, "key", key)): part for key, part in zip(keys, parts, strict=True)}
        return {"dict": named}
    if all(isinstance(key, jtu.GetAttrKey) for key in keys):
        names = [str(key).lstrip(".") for key in keys]
        return {"dict": dict(zip(names, parts, strict=True))}
    return {"tuple" if isinstance(tree, tuple) else "list": parts}


def build_tree(description: dict[str, Any], arrays: Sequence[Any]) -> Any:
    """The tree again, of dicts, lists, tuples and `Clients`."""
    ((kind, content),) = description.items()
    if kind == "array":
        return arrays[content]
    if kind == "clients":
        return Clients(build_tree(content, arrays))
    if kind == "dict":
        return {key: build_tree(part, arrays) for key, part in content.items()}
    if kind in ("list", "tuple"):
        parts = [build_tree(part, arrays) for part in content]
        return tuple(parts) if kind == "tuple" else parts
    return content


def leaves_of(tree: Any) -> list[tuple[jax.Array, bool]]:
    """The arrays of a tree in order, and whether each is at the clients."""
    found = []
    for path, node in jtu.tree_leaves_with_path(tree, is_leaf=is_clients):
        if is_clients(node):
            found += [(as_array(x), True) for x in jtu.tree_leaves(node.value) if is_array(x)]
        elif is_array(node) or (is_number(node) and not is_field(path)):
            found.append((as_array(node), False))
    return found
