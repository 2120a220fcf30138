#!/bin/bash
# Start a throw-away one-machine Slurm on loopback.  Usage: up.sh STATE_DIR
# Needs (Debian 12): slurmctld slurmd slurm-client slurm-wlm-basic-plugins [munge]
# Env: NODES=4 GPUS=8 GPU_TYPE=h100 CTLD_PORT=26817 AUTH=none|munge LUA=1 PLUGINS=folder of *.lua
set -euo pipefail
S=${1:?state folder}
NODES=${NODES:-4}; GPUS=${GPUS:-8}; GPU_TYPE=${GPU_TYPE:-h100}; PORT=${CTLD_PORT:-26817}
AUTH=${AUTH:-none}; LUA=${LUA:-1}; PLUGINS=${PLUGINS:?folder with job_submit.lua and cli_filter.lua}
[ -e "$S/pids" ] && ls "$S"/pids/*.pid >/dev/null 2>&1 && { echo "already up in $S" >&2; exit 1; }
rm -rf "$S"; mkdir -p "$S"/{pids,log,state,out,etc}
for i in $(seq 1 "$NODES"); do mkdir -p "$S/spool/n$i"; done

if [ "$AUTH" = munge ]; then
  mkdir -p "$S/munge"; chmod 755 "$S/munge"
  dd if=/dev/urandom of="$S/munge/key" bs=128 count=1 status=none; chmod 400 "$S/munge/key"
  /usr/sbin/munged --force --key-file="$S/munge/key" --socket="$S/munge/sock" \
     --pid-file="$S/pids/munged.pid" --log-file="$S/log/munged.log" --seed-file="$S/munge/seed"
  AUTHL="AuthType=auth/munge
AuthInfo=socket=$S/munge/sock
CredType=cred/munge"
else
  AUTHL="AuthType=auth/none
CredType=cred/none"
fi
PLUG=""; [ "$LUA" = 1 ] && PLUG="JobSubmitPlugins=lua
CliFilterPlugins=lua"
cat > "$S/etc/slurm.conf" <<C
ClusterName=lo
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmUser=root
SlurmctldPort=$PORT
SlurmctldPidFile=$S/pids/slurmctld.pid
SlurmctldLogFile=$S/log/slurmctld.log
SlurmdPidFile=$S/pids/slurmd.%n.pid
SlurmdLogFile=$S/log/slurmd.%n.log
SlurmdSpoolDir=$S/spool/%n
StateSaveLocation=$S/state
$AUTHL
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=5
ReturnToService=2
SlurmdParameters=config_overrides
TopologyPlugin=topology/tree
GresTypes=gpu
$PLUG
C
for i in $(seq 1 "$NODES"); do
  echo "NodeName=n$i NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=$((PORT+100+i)) CPUs=16 RealMemory=2000 Feature=$GPU_TYPE,nvlink Gres=gpu:$GPU_TYPE:$GPUS State=UNKNOWN" >> "$S/etc/slurm.conf"
done
echo "PartitionName=gpu Nodes=n[1-$NODES] Default=YES MaxTime=1-0 State=UP" >> "$S/etc/slurm.conf"
half=$((NODES/2)); [ "$half" -lt 1 ] && half=1
{ echo "SwitchName=leaf1 Nodes=n[1-$half]"
  [ "$NODES" -gt 1 ] && echo "SwitchName=leaf2 Nodes=n[$((half+1))-$NODES]" && echo "SwitchName=spine Switches=leaf[1-2]"; true; } > "$S/etc/topology.conf"
mkdir -p "$S/dev"; for g in $(seq 0 $((GPUS-1))); do : > "$S/dev/gpu$g"; done   # any existing path satisfies File=
echo "Name=gpu Type=$GPU_TYPE File=$S/dev/gpu[0-$((GPUS-1))]" > "$S/etc/gres.conf"
[ "$LUA" = 1 ] && cp "$PLUGINS"/*.lua "$S/etc/"
export SLURM_CONF="$S/etc/slurm.conf"
/usr/sbin/slurmctld -c -f "$SLURM_CONF"
for i in $(seq 1 "$NODES"); do /usr/sbin/slurmd -N "n$i" -f "$SLURM_CONF"; done
for _ in $(seq 1 100); do
  [ "$(sinfo -h -N -o %T 2>/dev/null | grep -cx idle)" = "$NODES" ] && { echo "export SLURM_CONF=$SLURM_CONF"; exit 0; }
  sleep 0.1
done
echo "nodes did not become idle" >&2; sinfo -N -l >&2 || true; exit 1
