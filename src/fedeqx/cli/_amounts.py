"""Amounts of data for people."""


def amount(size: float | int) -> str:
    """Bytes in the unit that leaves one to three digits before the point."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"
