"""Amounts of memory as users write them."""

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(amount: str | int, name: str) -> int:
    """Bytes of an amount such as `"512MB"`, `"1.5 GiB"` or a number of bytes.

    Raises `ValueError` that names the argument `name`.
    """
    text = str(amount).strip().upper()
    digits = text.rstrip("BKMGTI ")
    unit = text[len(digits) :].strip() or "B"
    try:
        size = int(float(digits) * _UNITS[unit])
    except (KeyError, ValueError):
        size = 0
    if size < 1:
        raise ValueError(
            f"{name}={amount!r} is not an amount of memory. Write it as '512MB', '2GiB' or a "
            "number of bytes."
        )
    return size
