#!/bin/sh
# Remove, from the environment ENV, what only a GPU or a compiler would use: every library of CUDA that
# no extension of torch or torchvision is linked with, headers, and the programs that test torch.
set -eu
cd "$1"/lib/python3.11/site-packages
rm -rf torch/include torch/test
find torch/bin -type f ! -name torch_shm_manager -delete
[ -d nvidia ] || exit 0
ldd torch/_C*.so torchvision/*.so | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | xargs -r realpath | sort -u >/tmp/linked
find "$PWD/nvidia" -type f \( -name '*.so*' -o -name '*.a' -o -name '*.bc' -o -path '*/include/*' \) | sort -u >/tmp/shipped
comm -13 /tmp/linked /tmp/shipped | xargs -r rm --
rm -f torch/lib/libtorch_cuda_linalg.so
rm /tmp/linked /tmp/shipped
