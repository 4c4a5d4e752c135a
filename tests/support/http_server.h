#pragma once
// An HTTP server on the loopback interface for tests of downloads, with faults on demand.

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace bonfire::testing {

struct HttpAnswer {
  std::string body;
  int status = 200;
  bool ranges = true;                    // whether it can begin in the middle
  size_t cut_after = std::string::npos;  // bytes after which each answer ends early
};

class HttpServer {
 public:
  explicit HttpServer(std::map<std::string, HttpAnswer> answers);  // by path: "/file"; others are not found
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::string url() const;              // "http://127.0.0.1:40123"
  std::vector<std::string> requests();  // "/file" or "/file from 100", in order

 private:
  void serve();
  void answer(int connection);

  std::map<std::string, HttpAnswer> answers_;
  std::mutex mutex_;
  std::vector<std::string> requests_;
  std::atomic<bool> stop_{false};
  int listener_ = -1, port_ = 0;
  std::thread thread_;
};

}  // namespace bonfire::testing
