#!/bin/bash
# What comes after the array, on one machine: are all shares whole, what does a model say of them, and one file of all.
#
#   sbatch --dependency=afterok:JOB --kill-on-invalid-dep=yes slurm-finish.sh shards/ model.safetensors
#SBATCH --job-name=pucache-finish
#SBATCH --output=logs/%j.log
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --time=04:00:00

set -eu
shards=$1 model=$2
pucache verify "$shards"
pucache score "$model" "$shards" --out scores.csv
pucache pack "$shards" --out cache.h5
