#pragma once
// Slurm of one node, as Debian packages it (slurm-wlm and munge), with all that it keeps in a folder of its own.

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <string>

#include "tests/launch/launched.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::testing {

class Slurm {
 public:
  static bool is_here() {
    return ::geteuid() == 0 &&
           std::system(
               "(command -v slurmctld && command -v slurmd && command -v srun && command -v munged) >/dev/null") == 0;
  }

  // After this, wait_until_idle() must be true before srun is of use.
  Slurm() {
    std::filesystem::permissions(folder_.path(), std::filesystem::perms(0755));
    std::mt19937 random(std::random_device{}());
    std::string key(1024, '\0');
    for (char& byte : key) byte = static_cast<char>(random());
    std::filesystem::permissions(folder_.put("key", key), std::filesystem::perms(0600));
    folder_.put("slurm.conf", configuration());
    daemons_[0] = std::make_unique<ChildProcess>(
        Words{"munged", "--foreground", "--force", "--key-file=" + at("key"), "--socket=" + at("munge.socket"),
              "--pid-file=" + at("munged.pid"), "--log-file=" + at("munged.log"), "--seed-file=" + at("munged.seed")});
    daemons_[1] = std::make_unique<ChildProcess>(Words{"slurmctld", "-D", "-c"}, variables());
    daemons_[2] = std::make_unique<ChildProcess>(Words{"slurmd", "-D", "-N", "localhost"}, variables());
  }

  Slurm(const Slurm&) = delete;
  Slurm& operator=(const Slurm&) = delete;
  // Who looks after a job's last step reports its end to the daemons, and would ask for them for long.
  ~Slurm() {
    wait_until_idle();
    for (auto& daemon : daemons_) daemon.reset();
    for (int process : processes_with("SLURM_CONF=" + at("slurm.conf"))) ::kill(process, SIGKILL);
  }

  ChildProcess::Variables variables() const {
    return clean({{"SLURM_CONF", at("slurm.conf")}, {"ASAN_OPTIONS", "detect_leaks=0"}});  // MPI keeps what it has
  }

  bool wait_until_idle() const {
    for (int i = 0; i < 200; ++i) {
      ChildProcess nodes({"sinfo", "--noheader", "--format=%T"}, variables());
      if (nodes.read_line("idle") != "") return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return false;
  }

 private:
  std::string at(const char* name) const { return (folder_ / name).string(); }

  std::string configuration() const {
    return fmt::format(
        "ClusterName=bonfire\nSlurmctldHost=localhost(127.0.0.1)\nSlurmUser=root\nSlurmdUser=root\n"
        "AuthType=auth/munge\nAuthInfo=socket={0}/munge.socket\nCredType=cred/munge\n"
        "SlurmctldPort={1}\nSlurmdPort={2}\nStateSaveLocation={0}/state\nSlurmdSpoolDir={0}/spool\n"
        "SlurmctldPidFile={0}/slurmctld.pid\nSlurmdPidFile={0}/slurmd.pid\n"
        "SlurmctldLogFile={0}/slurmctld.log\nSlurmdLogFile={0}/slurmd.log\n"
        "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n"
        "AccountingStorageType=accounting_storage/none\nMpiDefault=none\nReturnToService=2\n"
        "NodeName=localhost NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN\n"
        "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES\n",
        folder_.path().string(), free_port(), free_port());
  }

  ScratchFolder folder_;
  std::unique_ptr<ChildProcess> daemons_[3];
};

}  // namespace bonfire::testing
