"""The package is a row of rooms whose arrows run one way, and it stays small."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1] / "lorentz_jax"
MAX_FILES, MAX_LINES, MAX_SHARE = 130, 24_500, 0.27

# A room may import rooms of lower levels, and the pure modules import each other.
PURE = {"geometry", "hyperplane", "functional", "ambient"}
LEVELS = [
    {"_src", "_version"},
    PURE,
    {"metrics", "losses", "distributions", "nn", "optim"},
    {"models"},
    {"data"},
    {"inference"},
    {"training"},
    {"bench"},
    {"commands"},
]
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}


def module_name(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}
TREES = {module: ast.parse(path.read_text()) for module, path in FILES.items()}


def room(module):
    """The room of `lorentz_jax.room.file`; the package itself is in none."""
    return module.split(".")[1] if "." in module else ""


def imports(module):
    """Yield `(imported module, name in it or None, bound name)`, those inside functions too."""
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None, alias.asname or alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                bound = alias.asname or alias.name
                yield (full, None, bound) if full in FILES else (node.module, alias.name, bound)


def private(name):
    return name.startswith("_") and not name.startswith("__")


def ours(module):
    """The imports of our modules, without those of the package itself, which loads rooms lazily."""
    return [entry for entry in imports(module) if entry[0].startswith("lorentz_jax.")]


def test_every_file_is_in_a_known_room():
    assert {room(module) for module in FILES} - {""} == set(LEVEL)


def test_arrows_between_rooms_run_one_way():
    wrong = []
    for module in FILES:
        if module == "lorentz_jax":
            continue  # `__getattr__` and the imports for type checkers name every room
        for imported, _, _ in ours(module):
            here, there = room(module), room(imported)
            if here != there and not {here, there} <= PURE and LEVEL[there] >= LEVEL[here]:
                wrong.append(f"{module} imports {imported}")
    assert not wrong, "\n".join(wrong)


def test_no_circle_hides_in_a_lazy_import():
    graph = {m: {name for name, _, _ in ours(m)} for m in FILES if m != "lorentz_jax"}
    for module, imported in graph.items():
        # The `__init__` of a room imports its files, so none of them may import it.
        if not module.endswith(".__main__"):
            assert module.rpartition(".")[0] not in imported, f"{module} imports its room"
    done, path = set(), []

    def visit(module):
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            path.append(module)
            for imported in graph[module]:
                visit(imported)
            done.add(path.pop())

    for module in graph:
        visit(module)


def test_no_private_name_crosses_a_room():
    wrong = []
    for module, tree in TREES.items():
        foreign = {}
        for imported, name, bound in ours(module):
            if room(imported) != room(module):
                foreign[bound] = imported
                if name is not None and private(name):
                    wrong.append(f"{module} imports {imported}.{name}")
                if any(private(part) for part in imported.split(".")[2:]):
                    wrong.append(f"{module} imports {imported}")
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in foreign
                and private(node.attr)
            ):
                wrong.append(f"{module} uses {foreign[node.value.id]}.{node.attr}")
    assert not wrong, "\n".join(wrong)


def test_the_package_stays_small():
    lines = defaultdict(int)
    for module, path in FILES.items():
        lines[room(module)] += len(path.read_text().splitlines())
    total, largest = sum(lines.values()), max(lines, key=lines.__getitem__)
    assert len(FILES) <= MAX_FILES, f"{len(FILES)} files"
    assert total <= MAX_LINES, f"{total} lines"
    assert lines[largest] <= MAX_SHARE * total, f"{largest}: {lines[largest]} of {total} lines"
