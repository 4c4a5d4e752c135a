// A rank as tests want it. Its arguments say what it does, one after another:
//   meet SECONDS    finds the other ranks; prints "met 4 on 1 machines"
//   join SECONDS    finds the other ranks; all but rank 0 then sleep so long before they join a group; prints "joined"
//   alarms MS       from now on a signal comes every so many milliseconds
//   train STEPS     data parallel, a layer of 2 MiB; prints a sum of its weights. hierarchical STEPS: by hosts,
//                   hierarchical2 STEPS: and with two communicators, local STEPS: by hosts, every fourth step (local
//                   SGD)
//   env NAME        prints NAME=value
//   fleet BACKEND   joins the job as a rank of fleet, with a collective_timeout of the environment's SECONDS
//   reduce TIMES    all-reduces of 1 MiB, each a step; whoever loses a peer by it leaves as a victim
//   leave NOW       the job
//   print TEXT      on stdout; error TEXT: on stderr; mumble TEXT: on stdout, and nothing is flushed
//   if RANK         what follows up to the next `if` is for that rank only; if all: for all
//   sleep SECONDS
//   spawn           starts a process of its own, in a session of its own, that sleeps; prints "processes PID PID"
//   deaf            does not hear SIGTERM, SIGINT, SIGHUP and SIGUSR1
//   polite CODE     leaves with CODE on SIGTERM or SIGINT
//   saver FILE      makes the file on SIGTERM or SIGINT and leaves
//   once FILE       what follows is left out when the file is there already, which it is after this
//   kill SIGNAL     itself
//   exit CODE

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "bonfire/base/error.h"
#include "bonfire/bonfire.h"
#include "bonfire/comm/rendezvous.h"
#include "bonfire/comm/shm/shm_group.h"
#include "bonfire/launch/launcher.h"
#include "bonfire/parallel/fleet.h"

namespace {

using namespace bonfire;

int polite_code = 0;
std::string saved_file;

void say(const std::string& text, std::FILE* to = stdout) {
  std::fprintf(to, "%s\n", text.c_str());
  std::fflush(to);
}

void meet(double seconds) {
  comm::Rendezvous job = comm::meet(comm::read_environment(),
                                    {.timeout = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000))});
  std::set<std::string> machines, addresses;
  for (const comm::Peer& peer : job.peers) {
    machines.insert(peer.machine);
    addresses.insert(peer.address);
  }
  say(fmt::format("met {} on {} machines at {}", job.peers.size(), machines.size(), fmt::join(addresses, " ")));
}

// TSan keeps a signal that comes shortly before a sleep until that is over.
void sleep_for(double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

void join_late(double seconds) {
  comm::Rendezvous job = comm::meet(comm::read_environment());
  if (job.environment.rank > 0) sleep_for(seconds);
  auto group = comm::shm_group(
      {.rank = job.environment.rank, .size = job.environment.world, .store = job.store, .name = "late"});
  group->barrier();
  say("joined");
}

// Calls that are interrupted by them are not made again by the system.
void send_alarms(int milliseconds) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  ::sigaction(SIGALRM, &action, nullptr);
  const timeval between{0, milliseconds * 1000};
  const itimerval timer{between, between};
  ::setitimer(ITIMER_REAL, &timer, nullptr);
}

void train(int steps, const std::string& how) {
  const int64_t communicators = how == "hierarchical2" ? 2 : 1;
  fleet::init();
  manual_seed(1);
  auto model = fleet::distributed_model(nn::Linear({.in = 1024, .out = 512}));
  auto optimizer = fleet::distributed_optimizer(optim::SGD(model.parameters(), {.lr = 0.01}),
                                                {.nccl_comm_num = communicators,
                                                 .fuse_all_reduce_ops = communicators == 1,
                                                 .use_hierarchical_allreduce = how != "train",
                                                 .use_local_sgd = how == "local"});
  for (int step = 0; step < steps; ++step) {
    mean(model(full({4, 1024}, 0.1 * (step + fleet::rank()), DType::f32))).backward();
    optimizer.step();
    optimizer.clear_grad();
  }
  say(fmt::format("sum of weights {:.4f}", sum(model.parameters()[0].value()).item()));
  fleet::leave();
}

void join(const std::string& backend) {
  const char* seconds = std::getenv("SECONDS");
  fleet::init({.backend = backend, .collective_timeout = seconds == nullptr ? 300 : std::stod(seconds)});
}

void reduce(int times) {
  std::vector<float> numbers(1 << 18, 1);
  for (int i = 0; i < times; ++i) {
    ++fleet::group().progress()->step;
    fleet::group().all_reduce({numbers.data(), numbers.size(), DType::f32}, comm::Reduce::mean);
  }
}

// What a rank does that trains with others: one that loses them is not to blame.
void as_rank(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    say(error.what(), stderr);
    std::_Exit(launch::kLostPeer);
  }
}

void spawn() {
  int child = ::fork();
  if (child == 0) {
    ::setsid();
    ::execlp("sleep", "sleep", "600", nullptr);
    ::_exit(127);
  }
  say(fmt::format("processes {} {}", ::getpid(), child));
}

void run(const std::vector<std::string>& words) {
  const char* rank = std::getenv("RANK");
  bool for_us = true;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    bool alone = word == "spawn" || word == "deaf";
    std::string value = alone ? "" : words.at(++i);
    if (word == "if") for_us = value == "all" || (rank != nullptr && value == rank);
    if (!for_us) continue;
    if (word == "meet") meet(std::stod(value));
    if (word == "join") join_late(std::stod(value));
    if (word == "alarms") send_alarms(std::stoi(value));
    if (word == "train" || word == "hierarchical" || word == "hierarchical2" || word == "local")
      train(std::stoi(value), word);
    if (word == "env") say(value + "=" + (std::getenv(value.c_str()) ? std::getenv(value.c_str()) : "(none)"));
    if (word == "fleet") join(value);
    if (word == "reduce") as_rank([&] { reduce(std::stoi(value)); });
    if (word == "leave") as_rank(fleet::leave);
    if (word == "print") say(value);
    if (word == "mumble") std::printf("%s\n", value.c_str());
    if (word == "error") say(value, stderr);
    if (word == "sleep") sleep_for(std::stod(value));
    if (word == "spawn") spawn();
    for (int number : {SIGTERM, SIGINT}) {
      if (word == "deaf") ::signal(number, SIG_IGN);
      if (word == "polite") ::signal(number, [](int) { ::_exit(polite_code); });
      if (word == "saver") ::signal(number, [](int) { ::_exit(::creat(saved_file.c_str(), 0644) < 0 ? 1 : 0); });
    }
    if (word == "deaf")
      for (int other : {SIGUSR1, SIGHUP}) ::signal(other, SIG_IGN);
    if (word == "polite") polite_code = std::stoi(value);
    if (word == "saver") saved_file = value;
    if (word == "once") {
      for_us = !std::filesystem::exists(value);
      std::ofstream(value) << "";
    }
    if (word == "kill") ::raise(std::stoi(value));
    if (word == "exit") std::exit(std::stoi(value));
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run({argv + 1, argv + argc});
  } catch (const Error& error) {
    say(error.what(), stderr);
    return 1;
  }
}
