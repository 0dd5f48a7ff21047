"""What is not part of the core installation, and how to get it."""


def missing_extra(extra: str, package: str, what: str) -> ImportError:
    """The error for a package that is not installed, and that an extra brings."""
    return ImportError(
        f"{what} needs the package {package}: pip install 'fedeqx[{extra}]'.", name=package
    )
