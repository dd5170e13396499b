"""Every public function of the pure modules is documented, typed, and its example is right."""

import doctest
import inspect

import jax
import jax.numpy as jnp
import pytest

from lorentz_jax import ambient, distributions, functional, geometry, hyperplane, losses

MODULES = (geometry, hyperplane, functional, ambient, distributions, losses)
NAMES = [
    (module, name)
    for module in MODULES
    for name in module.__all__
    if name not in ("Padding", "SCORES")
]
IMPORTS = {"ambient": ambient, "functional": functional, "geometry": geometry}
IMPORTS |= {"hyperplane": hyperplane, "jax": jax, "jnp": jnp}
IMPORTS |= {"distributions": distributions, "losses": losses}

each = pytest.mark.parametrize(
    ("module", "name"), NAMES, ids=[f"{m.__name__.rpartition('.')[2]}-{n}" for m, n in NAMES]
)


def failures(name: str, *docstrings: str) -> list[str]:
    """What examples print that differs from what they say, with the imports they assume."""
    examples = "\n\n".join(map(inspect.cleandoc, docstrings))
    test = doctest.DocTestParser().get_doctest(examples, dict(IMPORTS), name, None, 0)
    report: list[str] = []
    with jnp.printoptions(precision=4, suppress=True):
        doctest.DocTestRunner().run(test, out=report.append)
    return report


@each
def test_examples_print_what_they_say(module, name):
    docstring = getattr(module, name).__doc__
    assert ">>> " in docstring
    assert not failures(name, module.__doc__, docstring)


def test_a_wrong_example_is_noticed():
    assert failures("sum", ">>> 1 + 1\n3\n")
    assert failures("call", ">>> x = jnp.ones(2)\n", ">>> geometry.dist0(x)\n")
    assert not failures("setting", ">>> x = jnp.ones(2)\n", ">>> x.shape\n(2,)\n")


@each
def test_arguments_and_result_are_documented(module, name):
    function = getattr(module, name)
    docstring = inspect.getdoc(function)
    if inspect.isclass(function):
        wanted, described = "Attributes:", list(inspect.signature(function).parameters)
    else:
        wanted, described = "Args:", list(inspect.signature(function).parameters)
        assert "\nReturns:\n    " in docstring
    entries = docstring.split(f"\n{wanted}\n")[1].split("\n\n")[0]
    names = [n for line in entries.splitlines() for n in line.strip().split(":")[0].split(", ")]
    # The usual kappa is told in the module's docstring.
    described = [n for n in described if n != "kappa" or n in names]
    assert [n for n in names if n in described] == described
    assert docstring.splitlines()[0][-1] in ".)"
    assert function.__module__ == module.__name__


@each
def test_signatures_are_typed(module, name):
    signature = inspect.signature(getattr(module, name))
    for parameter in signature.parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty, parameter
        assert parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    if not inspect.isclass(getattr(module, name)):
        assert signature.return_annotation is not inspect.Signature.empty
