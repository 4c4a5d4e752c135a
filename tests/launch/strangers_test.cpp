// Jobs on hosts where others run programs too.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bonfire/comm/file_descriptor.h"
#include "bonfire/comm/gloo/gloo_group.h"
#include "tests/launch/hosts.h"
#include "tests/launch/launched.h"
#include "tests/support/certificates.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::launch::strangers_test {
namespace {

using testing::Certificates;
using testing::ChildProcess;
using testing::count;
using testing::expect_mentions;
using testing::joined;
using testing::Launched;
using testing::program_beside;
using testing::ScratchFolder;
using testing::TwoHosts;
using testing::Words;

comm::FileDescriptor connect_to(int port) {
  comm::FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  return socket;
}

// The launcher may have 1,024 descriptors, as is usual.
TEST(Strangers, ThatConnectInMassesDoNotKeepAJobFromStartingAgain) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < 2'000) GTEST_SKIP() << "this process may open " << limit.rlim_max << " files";
  const ScratchFolder folder;
  const std::string mark = folder.path(), file = folder / "begun";
  Launched job({"--nproc_per_node", "2", "--max_restarts", "1"},
               {"meet", "60", "env", "MASTER_PORT", "if", "1", "once", file, "sleep", "60"}, {{"BONFIRE_TEST", mark}},
               {"bash", "-c", "ulimit -n 1024 && exec \"$0\" \"$@\""});
  const std::string line = job.read_line("MASTER_PORT=");
  const int port = std::stoi(line.substr(line.find('=') + 1));
  std::vector<comm::FileDescriptor> strangers;
  for (int i = 0; i < 1'500; ++i) strangers.push_back(connect_to(port));
  while (!std::filesystem::exists(file)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const int victim = testing::process_of_rank(1, mark);
  ASSERT_GT(victim, 0);
  ::kill(victim, SIGKILL);
  EXPECT_EQ(job.wait(), 0) << job.output();
  EXPECT_EQ(count(job.output(), "] met 2 on 1 machines"), 4u) << job.output();
}

// It calls first wherever it can: the store's port, those of Gloo's connections, those that watch links.
TEST(Strangers, ThatCallEveryPortFirstDoNotStopAJob) {
  if (::geteuid() != 0 || !comm::has_gloo()) GTEST_SKIP() << "root, who makes network namespaces, and Gloo are needed";
  const TwoHosts hosts;
  if (!hosts.ready()) GTEST_SKIP() << "no network namespaces can be made here";
  auto stranger = [&](const char* host) {
    return std::make_unique<ChildProcess>(joined(hosts.inside(host), {program_beside("stranger_program")}));
  };
  auto at_a = stranger("a"), at_b = stranger("b");
  ASSERT_NE(at_a->read_line("ready"), "");
  ASSERT_NE(at_b->read_line("ready"), "");
  auto node = [&](const std::string& host, const char* number) {
    return std::make_unique<Launched>(
        Words{"--nnodes", "2", "--node_rank", number, "--master_addr", "10.81.0.1", "--nproc_per_node", "2"},
        Words{"fleet", "gloo", "reduce", "20", "leave", "now"}, ChildProcess::Variables{{"BONFIRE_TOKEN", "secret"}},
        hosts.inside(host));
  };
  for (int trial = 0; trial < 3; ++trial) {
    auto zero = node("a", "0"), one = node("b", "1");
    EXPECT_EQ(zero->wait(), 0) << zero->output();
    EXPECT_EQ(one->wait(), 0) << one->output();
  }
  EXPECT_NE(at_a->read_line("called 29500"), "");
  at_a->signal(SIGKILL);
  at_b->signal(SIGKILL);
  at_a->wait();
  at_b->wait();
  EXPECT_GT(count(at_a->output(), "called"), 6u);
  EXPECT_GT(count(at_b->output(), "called"), 6u);
}

TEST(Strangers, JobsMeetOverTls) {
  if (!Certificates::can_be_made()) GTEST_SKIP() << "the openssl program is needed";
  const Certificates job("job"), other("other");
  Launched good({"--nproc_per_node", "2"}, {"meet", "60"}, job.variables("127.0.0.1"));
  EXPECT_EQ(good.wait(), 0) << good.output();
  EXPECT_EQ(count(good.output(), "met 2 on 1 machines"), 2u) << good.output();
  Launched wrong_name({"--nproc_per_node", "2"}, {"meet", "60"}, job.variables("node0.example"));
  EXPECT_NE(wrong_name.wait(), 0);
  expect_mentions(wrong_name.output(), {"no TLS with the store at 127.0.0.1:"});
  ChildProcess::Variables half = job.variables("127.0.0.1");
  half.pop_back();
  Launched missing({"--nproc_per_node", "1"}, {"meet", "60"}, half);
  EXPECT_NE(missing.wait(), 0);
  expect_mentions(missing.output(), {"BONFIRE_TLS_CA is not set, though its companions are"});
}

}  // namespace
}  // namespace bonfire::launch::strangers_test
