"""What the compiled kernel is told: the structures of `_passes.c`."""

import ctypes
from ctypes import c_int64, c_void_p


class Pass(ctypes.Structure):
    """What `run_pass` does: the struct of that name in `_passes.c`, in the same order."""

    _fields_ = [
        *((name, c_int64) for name in ("n", "d")),
        ("x", c_void_p),
        *((name, c_int64) for name in ("x_row", "x_column", "x_bytes")),
        *((name, c_void_p) for name in ("mean", "scale", "rest")),
        *((name, c_int64) for name in ("q", "s")),
        *((name, c_void_p) for name in ("Q", "S", "products", "squares")),
        *((name, c_int64) for name in ("quiet", "pairs")),
        *((name, c_void_p) for name in ("into", "left", "right_of", "pair_weight", "quadratic")),
        *((name, c_int64) for name in ("respond", "m", "k", "right", "action", "actions")),
        *((name, c_void_p) for name in ("constant", "factor", "y", "weight", "total", "loss")),
        *((name, c_int64) for name in ("columns", "square_columns")),
        *((name, c_void_p) for name in ("R", "back", "back_squares", "memory")),
    ]


class SparseRows(ctypes.Structure):
    """Sparse rows and what their products need: `sparse` in `_passes.c`, in the same order."""

    _fields_ = [
        *((name, c_void_p) for name in ("pointers", "indices")),
        ("index_bytes", c_int64),
        ("data", c_void_p),
        *((name, c_int64) for name in ("width", "square_width")),
        *((name, c_void_p) for name in ("weights", "square_weights", "constant")),
        *((name, c_int64) for name in ("back_width", "back_square_width")),
        *((name, c_void_p) for name in ("back", "back_squares", "totals", "scale", "shift")),
        ("levelled", c_int64),
        ("level", ctypes.c_double),
    ]
