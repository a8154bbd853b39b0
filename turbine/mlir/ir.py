"""The IR classes that other packages may use; everything else of MLIR stays in this folder."""

from iree.compiler.ir import Attribute as Attribute
from iree.compiler.ir import Block as Block
from iree.compiler.ir import Context as Context
from iree.compiler.ir import InsertionPoint as InsertionPoint
from iree.compiler.ir import Location as Location
from iree.compiler.ir import Module as Module
from iree.compiler.ir import Operation as Operation
from iree.compiler.ir import SymbolTable as SymbolTable
from iree.compiler.ir import Type as Type
from iree.compiler.ir import Value as Value
