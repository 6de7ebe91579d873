#!/bin/sh
# A Slurm of one node on this machine, for tests: Debian's packages, no cgroups, no accounting.
#
#   sh tests/ablate/slurm_setup.sh          install (as root), configure, start
#   sh tests/ablate/slurm_setup.sh stop     end the daemons that it started
#
# Everything it writes lies in /etc/slurm, /etc/munge and $STATE; it needs root, and touches no service manager.
set -eu
STATE=${STATE:-/run/slurm-test}

stop() {
    for name in slurmd slurmctld munged; do
        if [ -f "$STATE/$name.pid" ]; then
            pid=$(cat "$STATE/$name.pid")
            kill "$pid" 2>/dev/null || true
            # A daemon that ends late would delete the file that the next one has written.
            for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$pid" 2>/dev/null && sleep 1 || break; done
            rm -f "$STATE/$name.pid"
        fi
    done
}

if [ "${1:-start}" = stop ]; then
    stop
    exit 0
fi

if ! command -v sbatch >/dev/null || ! command -v munged >/dev/null; then
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends slurm-wlm munge
fi
stop
mkdir -p "$STATE/spool" "$STATE/ctld" /etc/slurm /run/munge /var/log/munge
[ -f /etc/munge/munge.key ] || dd if=/dev/urandom of=/etc/munge/munge.key bs=1024 count=1 2>/dev/null
chown -R munge:munge /etc/munge /run/munge /var/log/munge
chmod 400 /etc/munge/munge.key
chmod 755 /run/munge

# No cgroups: a container often has none that may be written. `proctrack/linuxproc` follows the process tree instead,
# and `task/none` binds nothing. Both daemons run as root, so that no `slurm` user is needed.
HOST=$(hostname -s)
CORES=$(nproc)
MEMORY=$(awk '/MemTotal/ {print int($2 / 1024 * 0.9)}' /proc/meminfo)
cat >/etc/slurm/slurm.conf <<CONF
ClusterName=test
SlurmctldHost=$HOST
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation=$STATE/ctld
SlurmdSpoolDir=$STATE/spool
SlurmctldPidFile=$STATE/slurmctld.pid
SlurmdPidFile=$STATE/slurmd.pid
SlurmctldLogFile=$STATE/slurmctld.log
SlurmdLogFile=$STATE/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=30
KillWait=5
MinJobAge=600
JobRequeue=1
NodeName=$HOST CPUs=$CORES RealMemory=$MEMORY State=UNKNOWN
PartitionName=test Nodes=$HOST Default=YES MaxTime=INFINITE State=UP
CONF
# slurmd wants a cgroup plugin all the same: none since 23.11, before that the first version's, which needs nothing.
case $(slurmd -V) in
    *" 2"[01].* | *" 22."* | *" 23.02"*) echo CgroupPlugin=cgroup/v1 ;;
    *) echo CgroupPlugin=disabled ;;
esac >/etc/slurm/cgroup.conf
grep -q "[[:space:]]$HOST\$" /etc/hosts || echo "127.0.0.1 $HOST" >>/etc/hosts

su -s /bin/sh munge -c "/usr/sbin/munged --force"
cp /run/munge/munged.pid "$STATE/munged.pid"
slurmctld
slurmd || { echo "slurmd does not start: slurmd -Dv says why" >&2; exit 1; }
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
    if sinfo -h -o %T 2>/dev/null | grep -q idle; then
        sinfo
        exit 0
    fi
    scontrol update nodename="$HOST" state=resume 2>/dev/null || true
    sleep 1
done
echo "the node did not come up; see $STATE/*.log" >&2
tail -n 20 "$STATE"/*.log >&2
exit 1
