#pragma once
// An authority and certificates of its own, as the openssl program makes them.
//
//   Certificates job("job");
//   ChildProcess rank(words, job.variables("127.0.0.1"));

#include <fmt/format.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/scratch_folder.h"

namespace bonfire::testing {

class Certificates {
 public:
  static bool can_be_made() { return std::system("command -v openssl >/dev/null 2>&1") == 0; }

  explicit Certificates(const std::string& authority) {
    run(
        fmt::format("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj '/CN={}' -keyout "
                    "ca.key -out ca.pem",
                    authority));
  }

  // BONFIRE_TLS_CERT, _KEY and _CA of one who may call itself by this name or address.
  std::vector<std::pair<std::string, std::string>> variables(const std::string& name) const {
    const bool is_address = name.find_first_not_of("0123456789.") == std::string::npos;
    folder_.put(name + ".ext", fmt::format("subjectAltName = {}:{}\n", is_address ? "IP" : "DNS", name));
    run(
        fmt::format("req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj '/CN={0}' -keyout {0}.key -out "
                    "{0}.csr",
                    name));
    run(
        fmt::format("x509 -req -days 2 -in {0}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile {0}.ext -out "
                    "{0}.pem",
                    name));
    return {{"BONFIRE_TLS_CERT", (folder_ / (name + ".pem")).string()},
            {"BONFIRE_TLS_KEY", (folder_ / (name + ".key")).string()},
            {"BONFIRE_TLS_CA", (folder_ / "ca.pem").string()}};
  }

 private:
  void run(const std::string& arguments) const {
    const std::string command =
        fmt::format("cd '{}' && openssl {} >openssl.log 2>&1", folder_.path().string(), arguments);
    if (std::system(command.c_str()) != 0) throw std::runtime_error("openssl: " + folder_.get("openssl.log"));
  }

  ScratchFolder folder_;
};

}  // namespace bonfire::testing
