#pragma once
// Whoever speaks gRPC's language without belonging to a job: it sends the store messages as long as they may be, and
// ends none of them. It keeps to HTTP/2's rules, so that nobody has a reason to hang up but that it is a stranger.

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

#include "bonfire/comm/file_descriptor.h"

namespace bonfire::testing {

class Http2Stranger {
 public:
  explicit Http2Stranger(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    open_ = ::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    put("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    put(frame(kSettings, 0, 0, ""));
  }

  // Begins messages of `bytes` each, and sends what it is given room for, until nothing more comes for a second.
  void send_messages(int count, size_t bytes) {
    for (int i = 0; i < count; ++i) {
      const uint32_t stream = 2 * static_cast<uint32_t>(i) + 1;
      put(frame(kHeaders, kEndHeaders, stream, headers()));
      rooms_[stream] = initial_room_;
      left_[stream] = bytes;
      send_some(stream, 0, std::string(1, '\0') + number(static_cast<uint32_t>(bytes)));
    }
    while (open_) {
      for (auto& [stream, left] : left_)
        while (open_ && left > 1 && rooms_[stream] > 0 && room_ > 0)
          send_some(stream, left - 1, std::string(16'000, 'x'));
      if (!hear()) return;
    }
  }

  bool heard_anything() const { return heard_; }
  bool open() const { return open_; }
  bool hear() {  // what comes within a second; false: nothing
    pollfd question{socket_.get(), POLLIN, 0};
    if (!open_ || ::poll(&question, 1, 1'000) <= 0) return false;
    char bytes[65536];
    const ssize_t count = ::recv(socket_.get(), bytes, sizeof bytes, 0);
    if (count <= 0) return open_ = false;
    heard_ = true;
    unread_.append(bytes, static_cast<size_t>(count));
    while (take_frame()) {
    }
    return true;
  }

 private:
  static constexpr uint8_t kData = 0, kHeaders = 1, kSettings = 4, kPing = 6, kWindowUpdate = 8;
  static constexpr uint8_t kAck = 1, kEndHeaders = 4;

  static std::string number(uint32_t value) {
    std::string text;
    for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(value >> shift);
    return text;
  }
  static std::string frame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
    return number(static_cast<uint32_t>(payload.size())).substr(1) + static_cast<char>(type) +
           static_cast<char>(flags) + number(stream) + payload;
  }
  static std::string word(const std::string& text) { return static_cast<char>(text.size()) + text; }
  // HPACK's literals: POST, http, :path, :authority, content-type, te.
  static std::string headers() {
    return "\x83\x86\x44" + word("/bonfire.comm.wire.Store/Set") + "\x41" + word("x") + "\x5f" +
           word("application/grpc") + "\x40" + word("te") + word("trailers");
  }

  void send_some(uint32_t stream, size_t most, std::string bytes) {
    if (most > 0) bytes.resize(std::min({bytes.size(), most, room(stream)}));
    put(frame(kData, 0, stream, bytes));
    rooms_[stream] -= static_cast<int64_t>(bytes.size());
    room_ -= static_cast<int64_t>(bytes.size());
    if (most > 0) left_[stream] -= bytes.size();
  }
  size_t room(uint32_t stream) { return static_cast<size_t>(std::min(rooms_[stream], room_)); }

  void put(const std::string& bytes) {
    for (size_t done = 0; open_ && done < bytes.size();) {
      const ssize_t count = ::send(socket_.get(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
      open_ = count > 0;
      if (open_) done += static_cast<size_t>(count);
    }
  }

  uint32_t number_at(size_t at, size_t bytes) const {
    uint32_t value = 0;
    for (size_t i = 0; i < bytes; ++i) value = value << 8 | static_cast<unsigned char>(unread_[at + i]);
    return value;
  }
  bool take_frame() {
    if (unread_.size() < 9 || unread_.size() < 9 + number_at(0, 3)) return false;
    const size_t end = 9 + number_at(0, 3);
    const uint32_t type = number_at(3, 1), flags = number_at(4, 1), stream = number_at(5, 4);
    if (type == kWindowUpdate) (stream == 0 ? room_ : rooms_[stream]) += number_at(9, 4);
    if (type == kPing && flags == 0) put(frame(kPing, kAck, 0, unread_.substr(9, 8)));
    if (type == kSettings && flags == 0) {
      for (size_t at = 9; at + 6 <= end; at += 6)
        if (number_at(at, 2) == 4) {  // initial window size
          for (auto& [one, room] : rooms_) room += int64_t{number_at(at + 2, 4)} - initial_room_;
          initial_room_ = number_at(at + 2, 4);
        }
      put(frame(kSettings, kAck, 0, ""));
    }
    unread_.erase(0, end);
    return true;
  }

  comm::FileDescriptor socket_;
  bool open_ = false, heard_ = false;
  std::string unread_;
  int64_t initial_room_ = 65535, room_ = 65535;  // bytes that may be sent: on a new stream, and on all
  std::map<uint32_t, int64_t> rooms_;            // by stream
  std::map<uint32_t, size_t> left_;              // bytes of its message, by stream
};

}  // namespace bonfire::testing
