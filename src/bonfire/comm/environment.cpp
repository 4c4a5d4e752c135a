#include "bonfire/comm/environment.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string_view>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/base/thread_pool.h"
#include "bonfire/comm/network.h"

namespace bonfire::comm {

namespace {

constexpr int kDefaultPort = 29500;

std::optional<int> number_in(std::string_view text) {
  int number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

class Reader {
 public:
  explicit Reader(const ReadVariable& variable) : variable_(variable) {}

  bool has(const char* name) const { return variable_(name) != nullptr; }

  std::string text(const char* name, const std::string& otherwise = {}) const {
    const char* value = variable_(name);
    return value == nullptr ? otherwise : value;
  }

  // A number from low to high.
  int number(const char* name, int low, int high) const {
    if (!has(name)) throw_error<ConfigError>("[environment] {} is not set, though its companions are", name);
    std::optional<int> value = number_in(text(name));
    if (!value || *value < low || *value > high)
      throw_error<ConfigError>("[environment] {} is '{}', expected a whole number from {} to {}", name, text(name), low,
                               high);
    return *value;
  }
  int number(const char* name, int low, int high, int otherwise) const {
    return has(name) ? number(name, low, high) : otherwise;
  }
  int port(const char* name, int otherwise) const { return number(name, 1, 65535, otherwise); }

 private:
  const ReadVariable& variable_;
};

constexpr int kMost = std::numeric_limits<int>::max();

// --local_rank=N or --local-rank=N, as torch.distributed.launch hands it to programs.
std::optional<int> local_rank_in(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments)
    for (std::string_view option : {"--local_rank=", "--local-rank="})
      if (argument.starts_with(option)) {
        std::optional<int> number = number_in(std::string_view(argument).substr(option.size()));
        if (!number || *number < 0)
          throw_error<ConfigError>("[environment] '{}': expected a whole number from 0 after it", argument);
        return number;
      }
  return std::nullopt;
}

// Not by a look-up: some systems give a host's own name the address 127.0.1.1, and others reach it by another.
bool means_this_host(const std::string& address) {
  return address == "localhost" || address == "[::1]" || is_loopback(address);
}

Environment from_torchrun(const Reader& read, const std::vector<std::string>& arguments) {
  Environment e;
  e.world = read.number("WORLD_SIZE", 1, kMost);
  e.rank = read.number("RANK", 0, e.world - 1);
  e.master_address = read.text("MASTER_ADDR", e.master_address);
  // Set by hand, it is often left out. Ranks that meet at this host's own address are all here.
  e.knows_local_world = read.has("LOCAL_WORLD_SIZE") || means_this_host(e.master_address);
  e.local_world = read.number("LOCAL_WORLD_SIZE", 1, e.world, e.knows_local_world ? e.world : 1);
  std::optional<int> argument = local_rank_in(arguments);
  e.local_rank = read.number("LOCAL_RANK", 0, e.knows_local_world ? e.local_world - 1 : kMost,
                             argument.value_or(e.local_world == e.world ? e.rank : 0));
  if (argument && *argument != e.local_rank)
    throw_error<ConfigError>("[environment] the argument says --local_rank={}, the variable LOCAL_RANK {}", *argument,
                             e.local_rank);
  int port = read.port("MASTER_PORT", kDefaultPort);
  if (read.has("BONFIRE_GENERATION")) {
    e.starter = Starter::bonfire;
    e.generation = read.number("BONFIRE_GENERATION", 0, kMost);
    e.store_port = port;
    e.host = read.number("GROUP_RANK", 0, kMost, -1);
    e.node_timeout = std::chrono::milliseconds(
        read.number("BONFIRE_NODE_TIMEOUT", 1, kMost, static_cast<int>(e.node_timeout.count())));
  } else {
    e.starter = Starter::torchrun;
    bool agent_has_it = read.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
    if (agent_has_it) e.agent_port = port;
    e.store_port = read.port("BONFIRE_STORE_PORT", agent_has_it ? port % 65535 + 1 : port);
  }
  return e;
}

// Seldom the same for two jobs on one host.
int port_for_job(const Reader& read, const std::string& job) {
  int number = 0;
  for (char c : job)
    if (c >= '0' && c <= '9') number = (number * 10 + (c - '0')) % 1000;
  return read.port("BONFIRE_STORE_PORT", read.port("MASTER_PORT", kDefaultPort + number));
}

Environment from_mpirun(const Reader& read) {
  Environment e;
  e.starter = Starter::mpirun;
  e.world = read.number("OMPI_COMM_WORLD_SIZE", 1, kMost);
  e.rank = read.number("OMPI_COMM_WORLD_RANK", 0, e.world - 1);
  e.local_world = read.number("OMPI_COMM_WORLD_LOCAL_SIZE", 1, e.world);
  e.local_rank = read.number("OMPI_COMM_WORLD_LOCAL_RANK", 0, e.local_world - 1);
  if (e.local_world < e.world && !read.has("MASTER_ADDR"))
    throw_error<ConfigError>(
        "[environment] mpirun started ranks on several hosts; say where rank 0 is: "
        "mpirun -x MASTER_ADDR=HOST ...");
  e.master_address = read.text("MASTER_ADDR", e.master_address);
  e.store_port = port_for_job(read, read.text("OMPI_MCA_ess_base_jobid"));
  e.token = read.text("OMPI_MCA_orte_precondition_transports");  // random, and only this job's processes have it
  return e;
}

// What a list such as "4(x2),1" says of a node: nodes 0 and 1 have 4 tasks, node 2 has 1.
int tasks_of_node(const std::string& list, int node) {
  int first = 0;
  for (size_t begin = 0; begin < list.size();) {
    size_t end = std::min(list.find(',', begin), list.size());
    std::string_view part = std::string_view(list).substr(begin, end - begin);
    size_t times = part.find("(x");
    int nodes = 1;
    if (times != std::string_view::npos) nodes = number_in(part.substr(times + 2, part.size() - times - 3)).value_or(0);
    std::optional<int> tasks = number_in(part.substr(0, times));
    if (!tasks || *tasks < 1 || nodes < 1) break;
    if (node < first + nodes) return *tasks;
    first += nodes;
    begin = end + 1;
  }
  throw_error<ConfigError>("[environment] SLURM_STEP_TASKS_PER_NODE is '{}', which says nothing of node {}", list,
                           node);
}

Environment from_srun(const Reader& read) {
  Environment e;
  e.starter = Starter::srun;
  e.world = read.number("SLURM_STEP_NUM_TASKS", 1, kMost);
  e.rank = read.number("SLURM_PROCID", 0, e.world - 1);
  e.local_world = tasks_of_node(read.text("SLURM_STEP_TASKS_PER_NODE"), read.number("SLURM_NODEID", 0, kMost));
  e.local_rank = read.number("SLURM_LOCALID", 0, e.local_world - 1);
  std::string hosts = read.text("SLURM_STEP_NODELIST", read.text("SLURM_NODELIST", read.text("SLURM_JOB_NODELIST")));
  if (e.local_world < e.world) e.master_address = first_host(hosts);
  e.master_address = read.text("MASTER_ADDR", e.master_address);
  e.store_port = port_for_job(read, read.text("SLURM_JOB_ID") + read.text("SLURM_STEP_ID"));
  return e;
}

}  // namespace

int Environment::threads() const { return std::max(1, available_cores() / local_world); }

Environment read_environment(const std::vector<std::string>& arguments) {
  return read_environment(arguments, [](const char* name) { return std::getenv(name); });
}

Environment read_environment(const std::vector<std::string>& arguments, const ReadVariable& variable) {
  Reader read(variable);
  Environment e;
  if (read.has("RANK") || read.has("WORLD_SIZE")) {
    e = from_torchrun(read, arguments);
  } else if (read.has("OMPI_COMM_WORLD_SIZE")) {
    e = from_mpirun(read);
  } else if (read.has("SLURM_STEP_NUM_TASKS") && read.has("SLURM_PROCID")) {
    e = from_srun(read);
  } else if (std::optional<int> local = local_rank_in(arguments)) {
    e.local_rank = *local;
  }
  if (std::string token = read_token(variable); !token.empty()) e.token = token;
  return e;
}

std::string read_token(const ReadVariable& variable) {
  Reader read(variable);
  if (read.has("BONFIRE_TOKEN")) return read.text("BONFIRE_TOKEN");
  if (!read.has("BONFIRE_TOKEN_FILE")) return {};
  std::string file = read.text("BONFIRE_TOKEN_FILE");
  std::vector<std::byte> bytes = base::read_file(file);
  std::string token(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  token.erase(token.find_last_not_of(" \t\r\n") + 1);
  if (token.empty()) throw_error<ConfigError>("[environment] BONFIRE_TOKEN_FILE: '{}' has no token in it", file);
  return token;
}

std::string first_host(const std::string& slurm_list) {
  size_t bracket = slurm_list.find('['), comma = slurm_list.find(',');
  if (bracket == std::string::npos || comma < bracket) bracket = std::string::npos;
  std::string host = slurm_list.substr(0, bracket == std::string::npos ? comma : bracket);
  if (bracket != std::string::npos) {
    size_t close = slurm_list.find(']', bracket), end = slurm_list.find_first_of(",-]", bracket);
    if (close == std::string::npos)
      throw_error<ConfigError>("[environment] '{}' is not a list of hosts as Slurm writes it", slurm_list);
    host += slurm_list.substr(bracket + 1, end - bracket - 1);
    host += slurm_list.substr(close + 1, slurm_list.find_first_of(",[", close) - close - 1);
  }
  if (host.empty()) throw_error<ConfigError>("[environment] Slurm names no hosts; set MASTER_ADDR to rank 0's");
  return host;
}

}  // namespace bonfire::comm
