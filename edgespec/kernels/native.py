"""Compiles functions on integers and raw memory: those that ggml calls.

A function marked with `native` is ordinary Python to look at, of int64 throughout: assignments,
``if``, ``while``, ``for ... in range``, arithmetic on what is not negative, calls of its like and
of the functions below. Numba can do this too, but takes 10 s for what takes 0.4 s here, and 0.6 s
to load it again.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar

import llvmlite.ir as ir

from edgespec.kernels.isa import I8, I16, I32, I64, VOID, Builder, Value

__all__ = [
    "Bool",
    "Int32",
    "add_atomically",
    "call",
    "load8",
    "load16",
    "load32",
    "load64",
    "native",
    "store8",
    "store16",
    "store32",
    "store64",
    "translate",
]

Int32 = int
"""Annotates an argument or a result that C has as an int."""

Bool = int
"""Annotates a result that C has as a bool."""

Function = TypeVar("Function", bound=Callable[..., Any])

_marked: list[Callable[..., Any]] = []


def native(function: Function) -> Function:
    """Mark a function to be compiled. It cannot be called from Python."""
    _marked.append(function)
    return function


def load8(address: int) -> int:
    """Load an unsigned byte."""
    raise NotImplementedError


def load16(address: int) -> int:
    """Load two bytes, unsigned."""
    raise NotImplementedError


def load32(address: int) -> int:
    """Load four bytes, signed."""
    raise NotImplementedError


def load64(address: int) -> int:
    """Load eight bytes."""
    raise NotImplementedError


def store8(address: int, value: int) -> None:
    """Store a byte."""


def store16(address: int, value: int) -> None:
    """Store two bytes."""


def store32(address: int, value: int) -> None:
    """Store four bytes."""


def store64(address: int, value: int) -> None:
    """Store eight bytes."""


def add_atomically(address: int, value: int) -> int:
    """Add to an integer that other threads add to as well; what it was before."""
    raise NotImplementedError


def call(address: int, *arguments: int) -> int:
    """Call a C function; of a result that is no int64 only the low bits mean something."""
    raise NotImplementedError


_LOADS = {load8: (I8, False), load16: (I16, False), load32: (I32, True), load64: (I64, True)}
_STORES = {store8: I8, store16: I16, store32: I32, store64: I64}


def translate(module: ir.Module) -> None:
    """Define every marked function in a module, under its name."""
    trees = {function: _tree(function) for function in _marked}
    assert len({function.__name__ for function in trees}) == len(trees)
    for function, tree in trees.items():
        kinds = [_KINDS[_annotation(argument.annotation)] for argument in tree.args.args]
        result = _KINDS[_annotation(tree.returns)]
        ir.Function(module, ir.FunctionType(result, kinds), function.__name__)
    for function, tree in trees.items():
        _Translator(module, function, tree).run()


_KINDS = {"int": I64, "Int32": I32, "Bool": I8, "bool": I64, "None": VOID}


_SIGNS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


def _tree(function: Callable[..., Any]) -> ast.FunctionDef:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return tree


def _annotation(node: ast.expr | None) -> str:
    return "None" if node is None or not isinstance(node, ast.Name) else node.id


class _Translator:
    """One function."""

    def __init__(
        self, module: ir.Module, function: Callable[..., Any], tree: ast.FunctionDef
    ) -> None:
        self._module, self._tree = module, tree
        self._globals = function.__globals__
        self._function = module.globals[function.__name__]
        self._b = Builder(self._function.append_basic_block("entry"))
        self._locals: dict[str, Value] = {}

    def run(self) -> None:
        """Translate it all."""
        for name in sorted(_names(self._tree)):
            self._locals[name] = self._slot()
        for argument, value in zip(self._tree.args.args, self._function.args, strict=True):
            self._b.store(self._widened(value, signed=True), self._locals[argument.arg])
        self._block(self._tree.body)
        if not self._b.block.is_terminated:
            if self._function.function_type.return_type == VOID:
                self._b.ret_void()
            else:
                self._b.unreachable()

    def _slot(self) -> Value:
        """Return the memory for an integer, that LLVM makes a register."""
        with self._b.goto_entry_block():
            return self._b.alloca(I64)

    def _widened(self, value: Value, signed: bool) -> Value:
        if value.type == I64:
            return value
        return self._b.sext(value, I64) if signed else self._b.zext(value, I64)

    # -- statements ------------------------------------------------------------------------------

    def _block(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            getattr(self, f"_do_{type(statement).__name__.lower()}")(statement)

    def _do_expr(self, statement: ast.Expr) -> None:
        if not isinstance(statement.value, ast.Constant):  # a docstring
            self._value(statement.value)

    def _do_assign(self, statement: ast.Assign) -> None:
        (target,) = statement.targets
        if isinstance(target, ast.Tuple):
            assert isinstance(statement.value, ast.Tuple)
            values = [self._value(value) for value in statement.value.elts]
            for name, value in zip(target.elts, values, strict=True):
                self._assign(name, value)
        else:
            self._assign(target, self._value(statement.value))

    def _do_augassign(self, statement: ast.AugAssign) -> None:
        old = self._value(statement.target)
        new = self._operation(statement.op, old, self._value(statement.value))
        self._assign(statement.target, new)

    def _assign(self, target: ast.expr, value: Value) -> None:
        assert isinstance(target, ast.Name)
        self._b.store(value, self._locals[target.id])

    def _do_return(self, statement: ast.Return) -> None:
        result = self._function.function_type.return_type
        if statement.value is None:
            self._b.ret_void()
        else:
            value = self._value(statement.value)
            self._b.ret(value if result == I64 else self._b.trunc(value, result))

    def _do_if(self, statement: ast.If) -> None:
        then, otherwise, after = (self._b.append_basic_block() for _ in range(3))
        self._b.cbranch(self._truth(statement.test), then, otherwise)
        for block, body in ((then, statement.body), (otherwise, statement.orelse)):
            self._b.position_at_end(block)
            self._block(body)
            self._go(after)
        self._b.position_at_end(after)

    def _do_while(self, statement: ast.While) -> None:
        head, inside, after = (self._b.append_basic_block() for _ in range(3))
        self._b.branch(head)
        self._b.position_at_end(head)
        self._b.cbranch(self._truth(statement.test), inside, after)
        self._b.position_at_end(inside)
        self._block(statement.body)
        self._go(head)
        self._b.position_at_end(after)

    def _do_for(self, statement: ast.For) -> None:
        assert isinstance(statement.iter, ast.Call) and isinstance(statement.target, ast.Name)
        bounds = [self._value(argument) for argument in statement.iter.args]
        start, stop, *rest = [I64(0), *bounds] if len(bounds) == 1 else bounds
        step = rest[0] if rest else I64(1)
        index = self._locals[statement.target.id]
        counter = self._slot()
        self._b.store(start, counter)
        head, inside, after = (self._b.append_basic_block() for _ in range(3))
        self._b.branch(head)
        self._b.position_at_end(head)
        current = self._b.load(counter)
        self._b.cbranch(self._b.icmp_signed("<", current, stop), inside, after)
        self._b.position_at_end(inside)
        self._b.store(current, index)
        self._b.store(self._b.add(current, step), counter)
        self._block(statement.body)
        self._go(head)
        self._b.position_at_end(after)

    def _go(self, block: Value) -> None:
        if not self._b.block.is_terminated:
            self._b.branch(block)

    # -- expressions -----------------------------------------------------------------------------

    def _value(self, node: ast.expr) -> Value:
        return getattr(self, f"_of_{type(node).__name__.lower()}")(node)

    def _truth(self, node: ast.expr) -> Value:
        return self._b.icmp_signed("!=", self._value(node), I64(0))

    def _of_constant(self, node: ast.Constant) -> Value:
        assert isinstance(node.value, int)
        return I64(int(node.value))

    def _of_name(self, node: ast.Name) -> Value:
        if node.id in self._locals:
            return self._b.load(self._locals[node.id])
        return I64(self._globals[node.id])

    def _of_attribute(self, node: ast.Attribute) -> Value:
        assert isinstance(node.value, ast.Name)
        owner = self._globals[node.value.id]
        assert isinstance(owner, ModuleType)
        return I64(getattr(owner, node.attr))

    def _of_binop(self, node: ast.BinOp) -> Value:
        return self._operation(node.op, self._value(node.left), self._value(node.right))

    def _operation(self, operator: ast.operator, left: Value, right: Value) -> Value:
        instructions: dict[type[ast.operator], Any] = {
            ast.Add: self._b.add,
            ast.Sub: self._b.sub,
            ast.Mult: self._b.mul,
            ast.FloorDiv: self._b.sdiv,
            ast.Mod: self._b.srem,
            ast.BitAnd: self._b.and_,
            ast.BitOr: self._b.or_,
            ast.LShift: self._b.shl,
            ast.RShift: self._b.lshr,
        }
        return instructions[type(operator)](left, right)

    def _of_unaryop(self, node: ast.UnaryOp) -> Value:
        value = self._value(node.operand)
        if isinstance(node.op, ast.Not):
            return self._b.zext(self._b.icmp_signed("==", value, I64(0)), I64)
        assert isinstance(node.op, ast.USub)
        return self._b.neg(value)

    def _of_compare(self, node: ast.Compare) -> Value:
        (operator,), (right,) = node.ops, node.comparators
        left = self._value(node.left)
        result = self._b.icmp_signed(_SIGNS[type(operator)], left, self._value(right))
        return self._b.zext(result, I64)

    def _of_boolop(self, node: ast.BoolOp) -> Value:
        """Look at later operands only if they matter."""
        result = self._slot()
        after = self._b.append_basic_block()
        for operand in node.values:
            value = self._value(operand)
            self._b.store(value, result)
            following = self._b.append_basic_block()
            holds = self._b.icmp_signed("!=", value, I64(0))
            if isinstance(node.op, ast.And):
                self._b.cbranch(holds, following, after)
            else:
                self._b.cbranch(holds, after, following)
            self._b.position_at_end(following)
        self._b.branch(after)
        self._b.position_at_end(after)
        return self._b.load(result)

    def _of_ifexp(self, node: ast.IfExp) -> Value:
        result = self._slot()
        then, otherwise, after = (self._b.append_basic_block() for _ in range(3))
        self._b.cbranch(self._truth(node.test), then, otherwise)
        for block, branch in ((then, node.body), (otherwise, node.orelse)):
            self._b.position_at_end(block)
            self._b.store(self._value(branch), result)
            self._b.branch(after)
        self._b.position_at_end(after)
        return self._b.load(result)

    def _of_call(self, node: ast.Call) -> Value:
        assert isinstance(node.func, ast.Name)
        values = [self._value(argument) for argument in node.args]
        if node.func.id in ("min", "max"):
            sign = "<" if node.func.id == "min" else ">"
            return self._b.select(self._b.icmp_signed(sign, *values), *values)
        function = self._globals[node.func.id]
        if function in _LOADS:
            kind, signed = _LOADS[function]
            return self._widened(self._b.load_at(self._pointer(values[0]), 0, kind), signed)
        if function in _STORES:
            kind = _STORES[function]
            value = values[1] if kind == I64 else self._b.trunc(values[1], kind)
            self._b.store_at(value, self._pointer(values[0]), 0)
            return None
        if function is add_atomically:
            pointer = self._b.inttoptr(values[0], I64.as_pointer())
            return self._b.atomic_rmw("add", pointer, values[1], "seq_cst")
        if function is call:
            kind = ir.FunctionType(I64, [I64] * (len(values) - 1))
            return self._b.call(self._b.inttoptr(values[0], kind.as_pointer()), values[1:])
        return self._call_native(self._module.globals[function.__name__], values)

    def _call_native(self, function: Value, values: list[Value]) -> Value:
        arguments = [
            value if argument.type == I64 else self._b.trunc(value, argument.type)
            for value, argument in zip(values, function.args, strict=True)
        ]
        result = self._b.call(function, arguments)
        return None if result.type == VOID else self._widened(result, signed=True)

    def _pointer(self, address: Value) -> Value:
        return self._b.inttoptr(address, I8.as_pointer())


def _names(tree: ast.FunctionDef) -> set[str]:
    """Return the arguments, and everything that is assigned to."""
    names = {argument.arg for argument in tree.args.args}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names
