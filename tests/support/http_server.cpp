#include "tests/support/http_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

namespace bonfire::testing {

HttpServer::HttpServer(std::map<std::string, HttpAnswer> answers) : answers_(std::move(answers)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener_, generic, length) != 0 || ::listen(listener_, 8) != 0 ||
      ::getsockname(listener_, generic, &length) != 0)
    throw std::runtime_error("cannot listen on the loopback interface");
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { serve(); });
}

HttpServer::~HttpServer() {
  stop_ = true;
  ::shutdown(listener_, SHUT_RDWR);  // wakes accept
  thread_.join();
  ::close(listener_);
}

std::string HttpServer::url() const { return fmt::format("http://127.0.0.1:{}", port_); }

std::vector<std::string> HttpServer::requests() {
  std::lock_guard lock(mutex_);
  return requests_;
}

void HttpServer::serve() {
  while (!stop_) {
    int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) continue;
    answer(connection);
    ::close(connection);
  }
}

void HttpServer::answer(int connection) {
  std::string head;
  char piece[1024];
  while (head.find("\r\n\r\n") == std::string::npos) {
    ssize_t count = ::recv(connection, piece, sizeof piece, 0);
    if (count <= 0) return;
    head.append(piece, static_cast<size_t>(count));
  }
  std::string path = head.substr(4, head.find(' ', 4) - 4);  // after "GET "
  size_t from = 0, range = head.find("Range: bytes=");
  if (range != std::string::npos) from = std::stoul(head.substr(range + 13));
  {
    std::lock_guard lock(mutex_);
    requests_.push_back(range == std::string::npos ? path : fmt::format("{} from {}", path, from));
  }
  auto found = answers_.find(path);
  HttpAnswer answer = found == answers_.end() ? HttpAnswer{.body = "not found", .status = 404} : found->second;
  std::string extra;
  if (range != std::string::npos && answer.ranges && answer.status == 200) {
    size_t all = answer.body.size();
    answer.status = from < all ? 206 : 416;
    if (from < all) extra = fmt::format("Content-Range: bytes {}-{}/{}\r\n", from, all - 1, all);
    answer.body = from < all ? answer.body.substr(from) : "";
  }
  std::string text = fmt::format("HTTP/1.1 {} Answer\r\nContent-Length: {}\r\n{}Connection: close\r\n\r\n",
                                 answer.status, answer.body.size(), extra);
  text += answer.body.substr(0, answer.cut_after);
  for (size_t sent = 0; sent < text.size();) {
    ssize_t count = ::send(connection, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) return;
    sent += static_cast<size_t>(count);
  }
}

}  // namespace bonfire::testing
