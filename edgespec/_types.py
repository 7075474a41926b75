"""Names of the array types that the package passes around."""

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "AnyArray",
    "BoolArray",
    "ByteArray",
    "Float32Array",
    "Float64Array",
    "Int32Array",
    "Int64Array",
]

AnyArray = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]
ByteArray = npt.NDArray[np.uint8]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
