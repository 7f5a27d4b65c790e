"""What a script imports before it does anything else."""
import ast
import importlib.util
import os


def head_of(path):
    """Its first import statements, as texts. The head ends where the script does something that an import could notice, such as setting a variable of the
    environment, or imports a module of its own folder, which may do so."""
    with open(path, "rb") as file:
        tree = ast.parse(file.read(), path)
    statements = []
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            if not all(_is_of_others(name, os.path.dirname(os.path.abspath(path))) for name in _modules(node)):
                break
            if getattr(node, "module", None) != "__future__":
                statements.append(ast.unparse(node))
        elif not _does_nothing(node):
            break
    return statements


def _modules(node):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module if node.level == 0 else ""]


def _is_of_others(module, folder):
    """Not of the script's folder, and there. Only asks for the package, which imports nothing."""
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or [])
    return not any(os.path.abspath(place).startswith(os.path.join(folder, "")) for place in places)


def _does_nothing(node):
    """A docstring, a constant, or a definition that evaluates nothing."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign):
        return isinstance(node.value, ast.Constant) and all(isinstance(target, ast.Name) for target in node.targets)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        arguments = node.args
        return not (node.decorator_list or arguments.defaults or any(arguments.kw_defaults) or node.returns
                    or any(each.annotation for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)))
    return False
