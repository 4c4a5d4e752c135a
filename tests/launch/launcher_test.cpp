#include "bonfire/launch/launcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <random>

#include "bonfire/base/thread_pool.h"
#include "tests/launch/launched.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::launch::launcher_test {

namespace {

using testing::count;
using testing::expect_mentions;
using testing::free_port;
using testing::gone_soon;
using testing::is_there;
using testing::joined;
using testing::Launched;
using testing::launcher_of;
using testing::processes_with;
using testing::ScratchFolder;
using testing::Words;

}  // namespace

TEST(Launch, RanksKnowWhoTheyAreAndMeet) {
  Launched job({"--nproc_per_node", "3"}, {"meet", "30", "env", "RANK", "env", "LOCAL_WORLD_SIZE"});
  EXPECT_EQ(job.wait(), 0) << job.output();
  for (const char* rank : {"0", "1", "2"})
    expect_mentions(job.output(), {fmt::format("[rank {}] met 3 on 1 machines at 127.0.0.1\n", rank),
                                   fmt::format("[rank {}] RANK={}\n", rank, rank),
                                   fmt::format("[rank {}] LOCAL_WORLD_SIZE=3\n", rank)});
}

TEST(Launch, RanksShareTheCores) {
  Launched job({"--nproc-per-node=2"}, {"env", "BONFIRE_CPU_THREADS", "env", "OMP_NUM_THREADS"},
               {{"OMP_NUM_THREADS", "7"}});
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(count(job.output(), fmt::format("BONFIRE_CPU_THREADS={}\n", std::max(1, available_cores() / 2))), 2u);
  EXPECT_EQ(count(job.output(), "OMP_NUM_THREADS=7\n"), 2u);  // the user's word stands
}

// A process that is stopped closes nothing, so nobody would ever notice.
TEST(Launch, OneThatIsStoppedForGoodIsEndedWithAllThatItHasStarted) {
  Launched jobs[] = {{{"--node_timeout", "5"}, {"spawn", "sleep", "60"}},
                     {{"--node_timeout", "5"}, {"spawn", "sleep", "60"}}};
  std::vector<int> processes;
  for (Launched& job : jobs)
    for (int process : job.processes(1)) processes.push_back(process);
  for (int part : {1, 2}) ::kill(launcher_of(jobs[part - 1])[static_cast<size_t>(part)], SIGSTOP);
  EXPECT_EQ(jobs[0].wait(), 128 + SIGKILL);
  expect_mentions(jobs[0].output(),
                  {"the launcher's guard (process ", "is stopped: it has given no sign of life for 5."});
  EXPECT_EQ(jobs[1].wait(), 128 + SIGKILL);
  expect_mentions(jobs[1].output(), {"the launcher (process ", "is stopped: it has given no sign of life for 5."});
  EXPECT_TRUE(gone_soon([&] { return processes; }));
}

TEST(Launch, TimeInWhichAllOfItWasStoppedDoesNotCount) {
  Launched job({"--node_timeout", "5"}, {"print", "begun", "sleep", "9", "print", "whole"});
  EXPECT_NE(job.read_line("begun"), "");
  const std::vector<int> all = launcher_of(job);
  for (int process : all) ::kill(process, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::seconds(7));
  for (int process : all) ::kill(process, SIGCONT);
  EXPECT_EQ(job.wait(), 0) << job.output();
  expect_mentions(job.output(), {"whole"});
}

TEST(Launch, ARankThatLostAnotherIsNotTheCulprit) {
  Launched job({"--nproc_per_node", "3"},
               {"if", "0", "exit", "76", "if", "1", "sleep", "0.2", "exit", "3", "if", "2", "sleep", "60"});
  EXPECT_EQ(job.wait(), 3);
  expect_mentions(job.output(), {"rank 1 (process ", "ended with exit status 3"});
  Launched victims({"--nproc_per_node", "2"}, {"if", "0", "exit", "76", "if", "1", "sleep", "60"});
  EXPECT_EQ(victims.wait(), 76);
  expect_mentions(victims.output(), {"rank 0 (process ", "ended with exit status 76"});
}

TEST(Launch, TheFirstFailureIsNamedAndTheOthersLeave) {
  Launched job({"--nproc_per_node", "3"}, {"meet", "30", "spawn", "if", "1", "print", "a line", "error", "the reason",
                                           "exit", "3", "if", "all", "sleep", "60"});
  std::vector<int> processes = job.processes(3);
  EXPECT_EQ(job.wait(), 3) << job.output();
  expect_mentions(job.output(), {"bonfire launch: rank 1 (process ", ") ended with exit status 3; its last lines:\n",
                                 "    a line\n    the reason\n"});
  EXPECT_EQ(count(job.output(), "bonfire launch:"), 1u) << job.output();
  for (int process : processes) EXPECT_FALSE(is_there(process));
}

TEST(Launch, ASignalThatKillsARankIsNamed) {
  Launched job({"--nproc_per_node", "2"}, {"if", "0", "kill", "10", "if", "1", "sleep", "60"});
  EXPECT_EQ(job.wait(), 128 + SIGUSR1);
  expect_mentions(job.output(), {"rank 0", "was killed by signal 10 (User defined signal 1); it had printed nothing"});
}

TEST(Launch, AFailureMakesNobodySave) {
  ScratchFolder folder;
  std::string file = folder.path() / "checkpoint";
  Words rank{"saver", file, "meet", "30", "if", "0", "exit", "3", "if", "1", "sleep", "60"};
  Launched job({"--nproc_per_node", "2"}, rank);
  EXPECT_EQ(job.wait(), 3) << job.output();
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(Launch, WhatARankHasPrintedIsNotLostWithIt) {
  Launched job({"--nproc_per_node", "2"}, {"fleet", "shm", "mumble", "so far so good", "kill", "9"});
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  expect_mentions(job.output(), {"so far so good\n"});
}

TEST(Launch, RanksThatDoNotHearAreKilled) {
  Launched job({"--nproc_per_node", "2"},
               {"deaf", "spawn", "meet", "30", "if", "0", "exit", "1", "if", "1", "sleep", "60"});
  std::vector<int> processes = job.processes(2);
  EXPECT_EQ(job.wait(), 1);
  for (int process : processes) EXPECT_FALSE(is_there(process));
}

TEST(Launch, WhatRanksStartedEndsWithAJobThatSucceeds) {
  Launched job({"--nproc_per_node", "2"}, {"spawn"});
  std::vector<int> processes = job.processes(2);
  EXPECT_EQ(job.wait(), 0);
  for (int process : processes) EXPECT_FALSE(is_there(process));
}

TEST(Launch, AKilledLauncherLeavesNothing) {
  for (size_t victim : {0, 1, 2}) {
    Launched job({"--nproc_per_node", "2"}, {"deaf", "spawn", "sleep", "60"});
    std::vector<int> processes = job.processes(2);
    ASSERT_EQ(processes.size(), 4u);
    const std::vector<int> launcher = launcher_of(job);
    processes.insert(processes.end(), launcher.begin() + 1, launcher.end());
    ASSERT_TRUE(is_there(processes.back()));
    ::kill(launcher[victim], SIGKILL);
    EXPECT_EQ(job.wait(), 128 + SIGKILL);
    EXPECT_TRUE(gone_soon([&] { return processes; })) << job.output();
  }
}

// BONFIRE_TRIALS=50 for a long look.
TEST(Launch, NothingIsLeftWhateverIsKilledWhenever) {
  const char* asked = std::getenv("BONFIRE_TRIALS");
  std::mt19937 random(6);
  for (int trial = 0; trial < (asked == nullptr ? 4 : std::atoi(asked)); ++trial) {
    std::string token = fmt::format("trial-{}-{}", ::getpid(), trial);
    Launched job({"--nproc_per_node", "2"}, {"deaf", "spawn", "meet", "30", "sleep", "60"}, {{"BONFIRE_TOKEN", token}});
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 150));
    std::vector<int> there = processes_with("BONFIRE_TOKEN=" + token);
    int victim = there.empty() ? job.pid() : there[random() % there.size()];
    const std::vector<int> launcher = launcher_of(job);
    const bool of_the_launcher = std::find(launcher.begin(), launcher.end(), victim) != launcher.end();
    ::kill(victim, SIGKILL);
    if (!of_the_launcher) job.signal(SIGKILL);  // one of a rank's processes: then the launcher too
    EXPECT_TRUE(gone_soon([&] { return processes_with("BONFIRE_TOKEN=" + token); })) << "trial " << trial;
    job.wait();
  }
}

// A shell that becomes the launcher leaves it its children.
TEST(Launch, LeavesOtherChildrenOfItsProcessAlone) {
  Launched job({"--nproc_per_node", "2"}, {"spawn"}, {},
               {"sh", "-c", "sleep 60 > /dev/null 2>&1 & echo other $!; exec \"$@\"", "sh"});
  const std::string line = job.read_line("other ");
  const int other = std::stoi(line.substr(line.find("other ") + 6));
  std::vector<int> processes = job.processes(2);
  EXPECT_EQ(job.wait(), 0) << job.output();
  for (int process : processes) EXPECT_FALSE(is_there(process));
  EXPECT_TRUE(is_there(other));
  ::kill(other, SIGKILL);
}

TEST(Launch, OutputIsKeptInAFileForEachRankAndRestart) {
  ScratchFolder folder;
  Launched job({"--nproc_per_node", "2", "--max_restarts", "1", "--log_dir", folder / "logs"},
               {"print", "begin", "error", "middle", "meet", "30", "if", "1", "once", folder / "seen", "exit", "2"});
  EXPECT_EQ(job.wait(), 0) << job.output();
  for (const char* file : {"logs/restart_0/rank_0.log", "logs/restart_0/rank_1.log", "logs/restart_1/rank_0.log",
                           "logs/restart_1/rank_1.log"})
    EXPECT_EQ(count(folder.get(file), "begin\n") + count(folder.get(file), "middle\n"), 2u) << file;
}

TEST(Launch, AllRanksStartAgainUnderANewGeneration) {
  ScratchFolder folder;
  Launched job({"--nproc_per_node", "2", "--max_restarts", "3"},
               {"meet", "30", "env", "BONFIRE_GENERATION", "if", "1", "once", folder / "seen", "kill", "9"});
  EXPECT_EQ(job.wait(), 0) << job.output();
  EXPECT_EQ(count(job.output(), "BONFIRE_GENERATION=1\n"), 2u) << job.output();
  expect_mentions(job.output(), {"was killed by signal 9", "bonfire launch: restart 1 of 3\n"});
}

// [14:03:07 warning] bonfire launch: …; what ranks print is no log.
TEST(Launch, MessagesHaveTimeAndLevelAndAreLeftOutBelowTheOneThatWasAskedFor) {
  const Words rank{"meet", "30", "if", "0", "print", "ready", "env", "BONFIRE_LOG"};
  for (const char* level : {"info", "error", "off"}) {
    Launched job({"--log-level", level, "--nproc_per_node", "1", "--max_restarts", "1"}, joined(rank, {"exit", "5"}));
    EXPECT_EQ(job.wait(), 5);
    EXPECT_EQ(count(job.output(), "[rank 0] ready\n"), 2U) << job.output();
    EXPECT_EQ(count(job.output(), std::string("[rank 0] BONFIRE_LOG=") + level + "\n"), 2U) << job.output();
    EXPECT_EQ(count(job.output(), " warning] bonfire launch: restart 1 of 1\n"), level == Words{"info"}[0] ? 1U : 0U);
    EXPECT_EQ(count(job.output(), " error] bonfire launch: rank 0 (process "), level == Words{"off"}[0] ? 0U : 2U);
  }
}

TEST(Launch, RestartsComeToAnEnd) {
  Launched job({"--nproc_per_node", "2", "--max_restarts", "2"}, {"if", "1", "exit", "5", "if", "0", "sleep", "60"});
  EXPECT_EQ(job.wait(), 5);
  EXPECT_EQ(count(job.output(), "ended with exit status 5"), 3u) << job.output();
}

TEST(Launch, CtrlCIsHandedOnAndRanksLeaveInTheirOwnWay) {
  for (int number : {SIGINT, SIGTERM}) {
    Launched job({"--nproc_per_node", "2", "--max_restarts", "2"}, {"polite", "7", "print", "ready", "sleep", "60"});
    for (int rank = 0; rank < 2; ++rank) job.read_line("ready");
    job.signal(number);
    EXPECT_EQ(job.wait(), 128 + number);
    EXPECT_EQ(count(job.output(), "bonfire launch:"), 1u) << job.output();  // "stopping", and no failure
  }
}

TEST(Launch, CtrlCTwiceEndsAtOnce) {
  Launched job({"--nproc_per_node", "2"}, {"deaf", "spawn", "sleep", "60"});
  std::vector<int> processes = job.processes(2);
  job.signal(SIGINT);
  job.read_line("stopping");
  job.signal(SIGINT);  // timeout(1) does so: not a second request
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  for (int process : processes) EXPECT_TRUE(is_there(process));
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(), 130);
  for (int process : processes) EXPECT_FALSE(is_there(process));
}

// A shell whose terminal is closed sends SIGHUP, and so does the terminal: that is one request.
TEST(Launch, SighupIsNeverASecondRequest) {
  Launched job({"--nproc_per_node", "2"}, {"deaf", "spawn", "sleep", "60"});
  std::vector<int> processes = job.processes(2);
  job.signal(SIGHUP);
  job.read_line("stopping");
  for (int again = 0; again < 2; ++again) {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    job.signal(SIGHUP);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  for (int process : processes) EXPECT_TRUE(is_there(process));
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), 128 + SIGTERM);
  for (int process : processes) EXPECT_FALSE(is_there(process));
}

TEST(Launch, LinesWithoutAnEndAndLongOnesAreKeptWhole) {
  std::string line(20'000, 'x');
  Launched job({"--nproc_per_node", "1"}, {"print", line});
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.output(), "[rank 0] " + line + "\n");
}

TEST(Launch, TwoJobsOnOneHostDoNotCollide) {
  Launched one({"--nproc_per_node", "2"}, {"meet", "30"}), other({"--nproc_per_node", "2"}, {"meet", "30"});
  EXPECT_EQ(one.wait(), 0) << one.output();
  EXPECT_EQ(other.wait(), 0) << other.output();
}

TEST(Launch, WorksOverIpv6) {
  Launched job({"--nproc_per_node", "2", "--master_addr", "::1"}, {"meet", "30"});
  if (job.wait() != 0 && job.output().find("not an address of this host") != std::string::npos)
    GTEST_SKIP() << "this host has no IPv6";
  EXPECT_EQ(count(job.output(), "met 2 on 1 machines at ::1"), 2u) << job.output();
}

TEST(Launch, WithoutProcItSaysHowToMountIt) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need /proc themselves";
#endif
  const Words hide{"unshare", "--mount", "sh", "-c", "mount -t tmpfs none /proc && exec \"$@\"", "sh"};
  testing::ChildProcess possible({"unshare", "--mount", "mount", "-t", "tmpfs", "none", "/proc"});
  if (possible.wait() != 0) GTEST_SKIP() << "mounts cannot be changed here: " << possible.output();
  Launched job({"--nproc_per_node", "2"}, {"meet", "30"}, {}, hide);
  EXPECT_EQ(job.wait(), 1);
  expect_mentions(job.output(), {"/proc/self/exe: No such file", "mount -t proc proc /proc"});
}

TEST(Launch, SaysWhatIsWrongWithItsArguments) {
  auto answer = [](const Words& words) {
    testing::ChildProcess job(testing::joined({BONFIRE_PROGRAM, "launch"}, words), testing::clean());
    EXPECT_NE(job.wait(), 0);
    return job.output();
  };
  ScratchFolder folder;
  expect_mentions(answer({}), {"which program?"});
  expect_mentions(answer({"no-such-program"}), {"there is no program 'no-such-program' in PATH"});
  expect_mentions(answer({"./none"}), {"'./none' is not a program that can be run: there is no such file"});
  expect_mentions(answer({folder.put("text", "no program")}), {"is not a program that can be run (chmod +x?)"});
  expect_mentions(answer({"--nproc_per_node", "-1", "true"}), {"--nproc_per_node cannot be -1"});
  expect_mentions(answer({"--nnodes", "2", "--node_rank", "2", "true"}), {"--node_rank is 2, expected 0 to 1"});
  expect_mentions(answer({"--nnodes", "2", "true"}), {"BONFIRE_TOKEN"});
  expect_mentions(answer({"--master_addr", "192.0.2.1", "true"}), {"192.0.2.1 is not an address of this host"});
  expect_mentions(answer({"--nproc_per_nod", "2", "true"}), {"nproc_per_nod"});
}

}  // namespace bonfire::launch::launcher_test
