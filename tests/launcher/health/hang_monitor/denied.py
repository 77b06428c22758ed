"""`denied.py PROGRAM ARG...`: run it where the kernel refuses to trace, as in most pods, by seccomp."""

import ctypes
import os
import platform
import sys

PTRACE, READ_MEMORY = {"x86_64": (101, 310), "aarch64": (117, 270)}[platform.machine()]
LOAD_CALL, EQUALS, ANSWER = (0x20, 0, 0, 0), 0x15, 0x06
REFUSED, ALLOWED = 0x00050000 | 1, 0x7FFF0000  # EPERM
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2


class Line(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("value", ctypes.c_uint))


class Program(ctypes.Structure):
    _fields_ = (("lines", ctypes.c_ushort), ("first", ctypes.POINTER(Line)))


lines = [
    LOAD_CALL,
    (EQUALS, 2, 0, PTRACE),
    (EQUALS, 1, 0, READ_MEMORY),
    (ANSWER, 0, 0, ALLOWED),
    (ANSWER, 0, 0, REFUSED),
]
program = Program(len(lines), (Line * len(lines))(*(Line(*line) for line in lines)))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(SECCOMP, FILTER, ctypes.byref(program), 0, 0):
    sys.exit(f"denied.py: {os.strerror(ctypes.get_errno())}")
os.execv(sys.argv[1], sys.argv[1:])
