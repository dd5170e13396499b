"""A clear error where the packages of an extra are not installed."""

import importlib.util


def require(module: str, extra: str, *packages: str) -> None:
    """Raise `ModuleNotFoundError` with the line to install, for the first package that is missing.

    Args:
        module: the public module that needs the packages.
        extra: the extra of this package that brings them.
        packages: names to import.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(
                f"{module} needs the package {package}: pip install 'lorentz-jax[{extra}]'",
                name=package,
            )
