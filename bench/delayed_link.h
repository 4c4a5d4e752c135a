#pragma once
// Small messages between hosts, for bench_comm: all-reduces of 64 KiB on 2 hosts of 4 ranks, whose link takes a
// millisecond each way.
//
// The hosts are network namespaces, and the link is this program: it reads the packets that leave one and hands each
// to the other a millisecond later. (The kernel's netem is not everywhere.) A rank is this program with --small; rank 0
// prints the medians of both ways, in microseconds.

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "bonfire/comm/gloo/gloo_group.h"
#include "bonfire/comm/hierarchical_group.h"
#include "bonfire/comm/rendezvous.h"
#include "bonfire/comm/shm/shm_group.h"
#include "measure.h"
#include "two_namespaces.h"

namespace bench {

// 10.85.0.1 on host a, 10.85.0.2 on host b.
class DelayedLink {
 public:
  explicit DelayedLink(std::chrono::microseconds delay) : delay_(delay) {
    ready_ = hosts_.ready() && open(0) && open(1);
    if (ready_) relay_ = std::thread([this] { relay(); });
  }
  ~DelayedLink() {
    stop_ = true;
    if (relay_.joinable()) relay_.join();
    for (int end : ends_)
      if (end >= 0) close(end);
  }
  DelayedLink(const DelayedLink&) = delete;
  DelayedLink& operator=(const DelayedLink&) = delete;
  bool ready() const { return ready_; }
  std::string inside(int host) const { return hosts_.inside(host); }

 private:
  struct Packet {
    Clock::time_point due;
    std::vector<char> bytes;
  };
  static constexpr size_t kMostBytes = 65'535;  // of a packet

  // An interface of the host whose packets this process sees. A thread may be in another namespace than its process.
  bool open(int host) {
    std::thread([&] {
      const int space = ::open(("/run/netns/" + hosts_.name(host)).c_str(), O_RDONLY | O_CLOEXEC);
      if (space < 0 || setns(space, CLONE_NEWNET) != 0) return;
      close(space);
      const int end = ::open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
      ifreq request{};
      request.ifr_flags = IFF_TUN | IFF_NO_PI;
      std::snprintf(request.ifr_name, sizeof request.ifr_name, "delayed");
      if (end >= 0 && ioctl(end, TUNSETIFF, &request) == 0) ends_[static_cast<size_t>(host)] = end;
    }).join();
    const std::string at = std::string("-n N") + "ab"[host];
    return ends_[static_cast<size_t>(host)] >= 0 &&
           hosts_.run("ip " + at + " addr add 10.85.0." + "12"[host] + "/24 dev delayed && ip " + at +
                      " link set delayed up mtu 9000 && ip " + at + " link set lo up");
  }

  void relay() {
    std::array<std::deque<Packet>, 2> on_the_way;  // to host a, to host b
    std::vector<char> space(kMostBytes);
    while (!stop_) {
      auto next = Clock::now() + std::chrono::milliseconds(20);
      for (size_t to : {0, 1}) {
        std::deque<Packet>& queue = on_the_way[to];
        for (; !queue.empty() && queue.front().due <= Clock::now(); queue.pop_front())
          [[maybe_unused]] ssize_t written = write(ends_[to], queue.front().bytes.data(), queue.front().bytes.size());
        if (!queue.empty()) next = std::min(next, queue.front().due);
      }
      const auto wait = std::max<int64_t>(0, std::chrono::nanoseconds(next - Clock::now()).count());
      const timespec time{wait / 1'000'000'000, wait % 1'000'000'000};
      pollfd ends[2] = {{ends_[0], POLLIN, 0}, {ends_[1], POLLIN, 0}};
      ppoll(ends, 2, &time, nullptr);
      for (size_t from : {0, 1})
        for (ssize_t got = 0; (got = read(ends_[from], space.data(), space.size())) > 0;)
          on_the_way[1 - from].push_back({Clock::now() + delay_, {space.begin(), space.begin() + got}});
    }
  }

  std::chrono::microseconds delay_;
  TwoNamespaces hosts_;
  bool ready_ = false;
  int ends_[2] = {-1, -1};
  std::atomic<bool> stop_ = false;
  std::thread relay_;
};

inline int be_small_rank() {
  using namespace bonfire;
  const comm::Rendezvous job = comm::meet(comm::read_environment());
  const comm::Environment& self = job.environment;
  auto world = comm::gloo_group({.rank = self.rank, .size = self.world, .store = job.store, .name = "world"},
                                {.interface = "delayed"});
  auto host = comm::shm_group({.rank = self.local_rank,
                               .size = self.local_world,
                               .store = job.store,
                               .name = "host of rank " + std::to_string(self.rank - self.local_rank)});
  auto by_hosts = comm::hierarchical_group(world, host);
  constexpr size_t kCount = (64 << 10) / sizeof(float);
  comm::GroupBuffer values = host->buffer(kCount * sizeof(float));
  std::fill_n(reinterpret_cast<float*>(values.get()), kCount, 0.0F);
  std::vector<double> times[2];  // flat, hierarchical
  for (int round = 0; round < 60; ++round)
    for (size_t way : {0, 1}) {
      world->barrier();
      const auto begin = Clock::now();
      (way == 0 ? world : by_hosts)->all_reduce({values.get(), kCount, DType::f32}, comm::Reduce::sum);
      if (round >= 10) times[way].push_back(microseconds(Clock::now() - begin));
    }
  if (self.rank == 0) std::printf("%f %f\n", median(times[0]), median(times[1]));
  std::fflush(stdout);
  world->barrier();
  return 0;
}

inline void measure_small_messages(const std::string& self, nlohmann::json& rows) {
  constexpr int kRanks = 8;
  const DelayedLink link(std::chrono::milliseconds(1));
  if (!link.ready() || !bonfire::comm::has_gloo()) {
    std::printf("64 KiB over a link of 1 ms: not measured, needs Gloo, root, `ip` and /dev/net/tun\n");
    return;
  }
  auto command = [&](int rank) {
    const int host = rank / (kRanks / 2);
    return link.inside(host) + "env RANK=" + std::to_string(rank) + " WORLD_SIZE=" + std::to_string(kRanks) +
           " LOCAL_RANK=" + std::to_string(rank % (kRanks / 2)) + " LOCAL_WORLD_SIZE=" + std::to_string(kRanks / 2) +
           " MASTER_ADDR=10.85.0.1 MASTER_PORT=29512 " + self + " --small";
  };
  std::vector<std::unique_ptr<Worker>> others;
  for (int rank = 1; rank < kRanks; ++rank) others.push_back(std::make_unique<Worker>(command(rank)));
  double flat = 0, by_hosts = 0;
  if (std::sscanf(output_of(command(0)).c_str(), "%lf %lf", &flat, &by_hosts) != 2)
    bonfire::throw_error<bonfire::CommError>("[bench_comm] the ranks on both ends of the delayed link have failed");
  std::printf("all-reduce 64 KiB, 2 hosts x 4 ranks, link of 1 ms: flat %.0f us, hierarchical %.0f us: %.2f x\n", flat,
              by_hosts, flat / by_hosts);
  rows.push_back({{"case", "64 KiB, 2 hosts x 4 ranks, link of 1 ms"},
                  {"flat_us", flat},
                  {"hierarchical_us", by_hosts},
                  {"ratio", flat / by_hosts}});
}

}  // namespace bench
