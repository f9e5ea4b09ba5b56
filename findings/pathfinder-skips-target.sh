#!/bin/sh
# cuda-pathfinder does not find the libraries of wheels that Python itself imports from a folder of `pip install --target`.
#
# Versions: cuda-pathfinder 1.9.1, nvidia-cuda-nvrtc 13.5.37, Python 3.11 and later, Linux; no GPU and no driver needed.
#
# One would guess: both packages lie in one folder that PYTHONPATH names (or a .pth file, as where one environment borrows
# the packages of another). `import nvidia` works there, pathfinder itself is imported from there, and its error says
# "No such file: libnvrtc.so.13": so it looks for that file beside itself, in nvidia/cu13/lib of sys.path.
# Seen: it asks site.getsitepackages() and the user's site-packages alone, and never sys.path. So load_nvidia_dynamic_lib
# raises DynamicLibNotFoundError although the library is one folder beside the module that says so; once anybody has
# loaded that file, by ctypes, it finds it ("was-already-loaded-from-elsewhere").
# Why it matters: `pip install --target` is how functions in the cloud, Spark, Bazel and air-gapped machines are given their
# packages. Everything that stands on cuda.bindings or cuda.core fails there with the advice to install what is installed.
#
# Output seen:
#     nvidia is imported from site
#     the library is there: True
#     pathfinder: DynamicLibNotFoundError
#     after ctypes has loaded it: was-already-loaded-from-elsewhere
set -eu
PYTHON=${PYTHON:-python3}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$PYTHON" -m pip install --quiet --disable-pip-version-check --target "$folder/site" \
    cuda-pathfinder==1.9.1 nvidia-cuda-nvrtc==13.5.37
PYTHONPATH=$folder/site "$PYTHON" - >"$folder/seen" <<'PROGRAM'
import ctypes
from pathlib import Path

import nvidia
from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

(place,) = map(Path, nvidia.__path__)
library = place / "cu13" / "lib" / "libnvrtc.so.13"
print("nvidia is imported from", place.parent.name)
print("the library is there:", library.exists())
try:
    load_nvidia_dynamic_lib("nvrtc")
    print("pathfinder: found")
except DynamicLibNotFoundError as error:
    print("pathfinder:", type(error).__name__)
load_nvidia_dynamic_lib.cache_clear() if hasattr(load_nvidia_dynamic_lib, "cache_clear") else None
ctypes.CDLL(str(library))
print("after ctypes has loaded it:", load_nvidia_dynamic_lib("nvrtc").found_via)
PROGRAM
cat "$folder/seen"
cat >"$folder/expected" <<'EXPECTED'
nvidia is imported from site
the library is there: True
pathfinder: DynamicLibNotFoundError
after ctypes has loaded it: was-already-loaded-from-elsewhere
EXPECTED
cmp "$folder/seen" "$folder/expected"
