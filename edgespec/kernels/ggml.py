"""Where ggml keeps things: offsets in its structs, of interface version 2.

`device` checks the version and some of the offsets before it relies on any.
"""

from __future__ import annotations

import ctypes

API_VERSION = 2

# struct ggml_tensor (ggml.h): 4 sizes and 4 strides of 8 bytes, 10 sources
TYPE, BUFFER, SIZES, STRIDES, OPERATION, PARAMETERS, SOURCES = 0, 8, 16, 48, 80, 84, 152
VIEWED, VIEW_OFFSET, DATA, NAME = 232, 240, 248, 256
# struct ggml_backend_buffer, _buffer_type, ggml_backend (ggml-backend-impl.h)
BUFFER_TYPE, BUFFER_BASE = 88, 96
TYPE_IS_HOST, TYPE_CONTEXT = 40, 56
BACKEND_DEVICE, BACKEND_CONTEXT = 136, 144
DEVICE_CONTEXT = 128

F32, F16, Q8_0, I32, I64 = 0, 1, 8, 26, 27
"""enum ggml_type"""

SUCCESS, OUT_OF_MEMORY, ABORTED = 0, -2, 1
"""enum ggml_status"""


class InitParameters(ctypes.Structure):
    """struct ggml_init_params: of a context for tensors."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )
