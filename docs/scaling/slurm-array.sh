#!/bin/bash
# Embeds one share of the images in each task of a Slurm array. Adapt the lines of #SBATCH, then,
# with --gres=gpu:1 where there are GPUs:
#
#   mkdir -p logs shards
#   sbatch --array=1-64 slurm-array.sh photos/ shards/ 64 [options of pucache embed]
#   sbatch --array=1-64 slurm-array.sh photos/list-%05d.txt shards/ 64       a manifest for each task instead
#
# Run it again to go on, for new images, or for some of the shares (--array=7,12): the 64 behind them stays.
#SBATCH --job-name=pucache-embed
#SBATCH --output=logs/%A_%a.log
#SBATCH --open-mode=append
#SBATCH --cpus-per-task=16
#SBATCH --mem=32G
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@180
#SBATCH --requeue

set -u
source=${1:?a source of images} shards=${2:?a folder for the caches} count=${3:?the number of shares}
shift 3
case $shards in
    *://*) export PUCACHE_WORK=${PUCACHE_WORK:-$HOME/.cache/pucache} ;; # parts lie there: a disk that every node sees
esac
task=$SLURM_ARRAY_TASK_ID
number=$(printf %05d "$task")
case $source in
    *%05d*) source=${source/\%05d/$number} share=() ;;
    *) share=(--shard "$task/$count") ;;
esac

# USR1 comes before the time is up. TERM comes with scancel and with preemption, which are Slurm's to continue.
signals=0 out_of_time='' embed=''
trap 'signals=$((signals + 1)) out_of_time=yes; kill -TERM "$embed" 2>/dev/null' USR1
trap 'signals=$((signals + 1)); kill -TERM "$embed" 2>/dev/null' TERM

pucache embed "$source" "${shards%/}/$number.h5" ${share[@]+"${share[@]}"} "$@" &
embed=$!
[ "$signals" = 0 ] || kill -TERM "$embed" # one that came before there was a process to tell
while :; do
    before=$signals
    wait "$embed"
    code=$?
    [ "$before" = "$signals" ] && break # a signal ends wait before the process has ended
done

again() {
    echo "$1: queued again"
    scontrol requeue "${SLURM_ARRAY_JOB_ID}_$task"
}
case $code in
    0) ;;                                                            # done
    2) echo "wrong usage: not tried again" ;;                        # it would fail again
    143) [ -n "$out_of_time" ] && again "out of time" ;;             # goes on from the finished parts
    *) [ "${SLURM_RESTART_COUNT:-0}" -lt 5 ] && again "ended with $code" ;;
esac
exit "$code"
