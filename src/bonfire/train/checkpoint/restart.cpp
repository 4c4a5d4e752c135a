#include "bonfire/train/checkpoint/restart.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "bonfire/base/log.h"
#include "bonfire/comm/environment.h"
#include "bonfire/train/checkpoint/checkpoint.h"

namespace bonfire::train {

namespace {

namespace fs = std::filesystem;

// A name that the launcher gives a job, and that stays the same over restarts.
std::string this_job() {
  const char* job = std::getenv("BONFIRE_JOB");
  return job == nullptr ? "" : job;
}

}  // namespace

void write_job(const fs::path& run) {
  const std::string job = this_job();
  if (job.empty()) return;
  std::ofstream stream(run / "job");
  if (stream << job << std::flush) return;
  base::log_warning("bonfire: cannot write '{}': {}; a restart would begin a new run instead of going on with this",
                    (run / "job").string(), std::strerror(errno));
}

std::optional<fs::path> run_before_restart(const fs::path& output) {
  if (comm::read_environment().generation == 0) return {};
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(output, ignored)) {
    std::string job;
    std::getline(std::ifstream(entry.path() / "job"), job);
    if (!job.empty() && job == this_job() && newest_checkpoint(entry.path() / "checkpoints", nullptr))
      return entry.path();
  }
  return {};
}

}  // namespace bonfire::train
