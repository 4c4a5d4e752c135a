// Whoever may run on a job's host without belonging to it, as the user nobody: calls each port of the host as soon as
// somebody listens there, says something, and keeps the connection. Prints "called PORT" each time.

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <set>
#include <string>

namespace {

struct Port {
  uint32_t address;  // as a sockaddr_in has it
  int number;
  auto operator<=>(const Port&) const = default;
};

std::set<Port> listening() {
  std::set<Port> ports;
  std::ifstream stream("/proc/net/tcp");
  std::string line;
  std::getline(stream, line);
  while (std::getline(stream, line)) {
    unsigned address = 0, port = 0, state = 0;
    if (std::sscanf(line.c_str(), " %*d: %x:%x %*x:%*x %x", &address, &port, &state) == 3 && state == 0x0a)
      ports.insert({address, static_cast<int>(port)});
  }
  return ports;
}

void call(const Port& port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = port.address;
  address.sin_port = htons(static_cast<uint16_t>(port.number));
  ::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address);
  const char word[64] = "let me in";
  ::send(socket, word, sizeof word, MSG_NOSIGNAL);
  std::printf("called %d\n", port.number);
  std::fflush(stdout);
}

}  // namespace

int main() {
  if (::geteuid() == 0 && ::setuid(65534) != 0) return 1;
  std::printf("ready\n");
  std::fflush(stdout);
  for (std::set<Port> known; ::getppid() != 1;) {
    std::set<Port> now = listening();
    for (const Port& port : now)
      if (!known.contains(port)) call(port);
    known = std::move(now);
  }
}
