#include "tests/launch/relay.h"

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <vector>

namespace bonfire::testing {
namespace {

using Clock = std::chrono::steady_clock;

// A thread of its own goes into the namespace, and what it opens stays there.
int tunnel_in(const std::string& place, const std::string& device) {
  int tunnel = -1;
  std::thread([&] {
    const int there = ::open(("/var/run/netns/" + place).c_str(), O_RDONLY | O_CLOEXEC);
    if (there < 0 || ::setns(there, CLONE_NEWNET) != 0) return;
    ::close(there);
    tunnel = ::open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    ifreq wanted{};
    wanted.ifr_flags = IFF_TUN | IFF_NO_PI;
    std::strncpy(wanted.ifr_name, device.c_str(), IFNAMSIZ - 1);
    if (tunnel < 0 || ::ioctl(tunnel, TUNSETIFF, &wanted) == 0) return;
    ::close(tunnel);
    tunnel = -1;
  }).join();
  return tunnel;
}

struct Packet {
  Clock::time_point due;
  int to;
  std::vector<char> bytes;
};

}  // namespace

Relay::Relay(const std::string& first, const std::string& second, const std::string& device)
    : ends_{tunnel_in(first, device), tunnel_in(second, device)} {
  if (ready()) thread_ = std::thread([this] { carry(); });
}

Relay::~Relay() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
  for (int end : ends_)
    if (end >= 0) ::close(end);
}

void Relay::carry() {
  std::deque<Packet> under_way;
  char bytes[1 << 16];
  while (!stop_) {
    pollfd sources[] = {{ends_[0], POLLIN, 0}, {ends_[1], POLLIN, 0}};
    const timespec moment{0, under_way.empty() ? 20'000'000 : 1'000'000};
    ::ppoll(sources, 2, &moment, nullptr);
    const Clock::time_point due = Clock::now() + std::chrono::milliseconds(delay_);
    for (int side : {0, 1})
      for (ssize_t count; (count = ::read(ends_[side], bytes, sizeof bytes)) > 0;)
        if (!cut_) under_way.push_back({due, ends_[1 - side], {bytes, bytes + count}});
    while (!under_way.empty() && (under_way.front().due <= Clock::now() || cut_)) {
      const Packet& packet = under_way.front();
      if (!cut_) [[maybe_unused]]
        const ssize_t sent = ::write(packet.to, packet.bytes.data(), packet.bytes.size());
      under_way.pop_front();
    }
  }
}

}  // namespace bonfire::testing
